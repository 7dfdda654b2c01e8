"""Write the tables of flags in docs/command-line.md from the flags' own help: `python -m tests.docs.command_line`.

The page has the groups of flags and their order; each row has the default and the help of its flag, and a link if `SEE`
has one.
"""

import argparse
import importlib
import re
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from apps.bert.__main__ import BertFlags
from apps.common.flags.address import DirectoryAddress
from apps.common.flags.command_flags import Coordinator
from apps.common.flags.groups import helps_of
from apps.common.lm.generate import Generate
from apps.common.rows.config import RowFlags
from apps.gpt2.config import GPT2Flags
from apps.llama.__main__ import LlamaFlags
from apps.ravnest import flags as ravnest
from apps.ravnest.config import RavnestConfig
from apps.resnet.__main__ import ResNetFlags
from apps.swarm.config import TrainingConfig
from apps.swarm.flags import Export, Local, Serve, Status, Train
from apps.vgg.config import VGGFlags
from pipelined.__main__ import COMMANDS
from pipelined.commands.flags import add_knobs
from pipelined.schedules import knobs_of
from tests.launching import ROOT

FILE = ROOT / "docs" / "command-line.md"
Row = tuple[str, str]
"""The default and the help of a flag."""
SHARED = {
    "## Flags of a row of layers": RowFlags,
    "### What is trained": TrainingConfig,
    "### Where a process finds its swarm": DirectoryAddress,
    "### What Ravnest trains": RavnestConfig,
}
"""The flags that commands share, by the heading above their table."""
ROWS = {"vgg": VGGFlags, "llama": LlamaFlags, "bert": BertFlags, "resnet": ResNetFlags, "gpt2 generate": Generate}
"""The flags of the programs that train a row of layers, and of `generate`."""
SWARM = {kind.__name__.lower(): kind for kind in (Coordinator, Serve, Train, Local, Status, Export)}
RAVNEST = {
    kind.__name__.lower(): kind
    for kind in (
        ravnest.Plan,
        Coordinator,
        ravnest.Serve,
        ravnest.Train,
        ravnest.Local,
        ravnest.Status,
        ravnest.Export,
        ravnest.Replay,
    )
}
NAMED = {"source": "from"}
"""Flags that have another name than their field."""
INNER = ("address", "subject", "knobs")
"""Fields that are no flags themselves, and have a table of their own."""
SEE = {
    (
        "gpt2",
        "--schedule",
    ): "[Schedules](schedules.md), [A swarm](swarm.md#gpt-2), [Ravnest](ravnest.md#ranks-as-nodes)",
    ("gpt2", "--tensor"): "[Workers of several ranks](teams.md#workers-of-several-ranks)",
    ("gpt2", "--plan"): "[The planner](planner.md#where-nothing-is-given)",
    ("gpt2", "--all-reduce"): "[Collectives](collectives.md#what-is-measured)",
    ("gpt2", "--exact-sums"): "[Exact sums](exact-sums.md)",
    ("gpt2", "--shard-optimizer"): "[A divided update](teams.md#a-divided-update)",
    ("gpt2", "--offload-optimizer"): "[Masters](memory.md#masters)",
    ("gpt2", "--delayed-update"): "[One step late](memory.md#one-step-late)",
    ("gpt2", "--compress"): "[Codecs](codecs.md)",
    ("gpt2", "--transport"): "[Transports](transports.md)",
    ("gpt2", "--listen"): "[A swarm](swarm.md#gpt-2)",
    ("gpt2", "--clip"): "[Without a flush](asynchronous.md#what-is-refused)",
    ("gpt2", "--resume"): "[Checkpoints](checkpoints.md#going-on)",
    ("TrainingConfig", "--exact-sums"): "[Exact sums](exact-sums.md#in-a-swarm)",
    ("TrainingConfig", "--delayed-updates"): "[Updates one step late](swarm-design.md#updates-one-step-late)",
    ("schedule", "--csv"): "[Tables](schedules.md#tables)",
    ("schedule", "--steps"): "[Without a flush](asynchronous.md)",
    ("plan", "--stale"): "[Without a flush](asynchronous.md)",
}
"""The pages that explain a flag, by the name of its table and the flag."""


def found_in(parser: argparse.ArgumentParser) -> dict[str, Row]:
    """The default and the help of each flag of a parser, in whichever group it stands."""
    actions = (action for action in parser._actions if action.option_strings)
    return {action.option_strings[0]: (shown(action.default), action.help or "") for action in actions}


def shown(default: object) -> str:
    """A default as the page shows it."""
    if default is MISSING:
        return "required"
    if default is None or default in ("", ()):
        return "open"
    if isinstance(default, tuple):
        return " ".join(map(str, default))
    return "off" if default is False else str(default)


def flags_of_class(kind: type) -> dict[str, Row]:
    """The flags that a dataclass makes; the docstring below a field is its help."""
    helps, rows = helps_of(kind), dict[str, Row]()
    for field in (each for each in fields(kind) if each.name not in INNER):
        if is_dataclass(field.type):
            rows |= flags_of_class(field.type)
        else:
            flag = "--" + NAMED.get(field.name, field.name).replace("_", "-")
            rows[flag] = shown(field.default), with_choices(helps[field.name], field.type)
    return rows


def with_choices(what: str, kind: Any) -> str:
    """A help text, with the choices of a flag after the first sentence unless the text names them."""
    parts = get_args(kind) if isinstance(kind, UnionType) or get_origin(kind) is Union else (kind,)
    choices = [str(choice) for part in parts if get_origin(part) is Literal for choice in get_args(part)]
    if all(re.search(rf"\b{re.escape(choice)}\b", what) for choice in choices):
        return what
    return re.sub(r"\.(?= |$)", f": {', '.join(choices[:-1])} or {choices[-1]}.", what, count=1)


def flags_of_command(name: str) -> dict[str, Row]:
    """The flags of a command of `python -m pipelined`."""
    module, flags = importlib.import_module(COMMANDS[name]), argparse.ArgumentParser(add_help=False)
    module.add_arguments(flags)
    if hasattr(module, "TAKES_KNOBS"):
        add_knobs(flags, "")
    return found_in(flags)


def flags_of_training() -> dict[str, Row]:
    """The flags of `python -m apps.gpt2`."""
    return flags_of_class(GPT2Flags) | {knob.flag: (shown(knob.default), knob.help) for knob in knobs_of()}


def written(text: str) -> str:
    """The page with every row of a flag as its help has it."""
    table, flags, lines = "", dict[str, Row](), []
    for line in text.splitlines():
        table, flags = _tables_after(line) or (table, flags)
        if found := re.match(r"\| `(--[\w-]+)` \|", line):
            default, what = flags[found[1]]
            see = SEE.get((table, found[1]))
            cells = f"`{found[1]}`", default, _marked(what) + (f"; see {see}" if see else "")
            line = f"| {' | '.join(cells)} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def _tables_after(line: str) -> tuple[str, dict[str, Row]] | None:
    """The name and the flags of the tables that follow a line, if it begins some."""
    makers: dict[str, Callable[[], dict[str, Row]]] = {"## python -m apps.gpt2": flags_of_training}
    if found := re.match(r"`python -m apps\.ravnest (\w+)`", line):
        return f"ravnest {found[1]}", flags_of_class(RAVNEST[found[1]])
    if line in SHARED:
        return SHARED[line].__name__, flags_of_class(SHARED[line])
    if found := re.match(r"`python -m apps\.swarm (\w+)`", line):
        return found[1], flags_of_class(SWARM[found[1]])
    if found := re.match(r"`python -m pipelined (\w+)", line):
        return found[1], flags_of_command(found[1])
    if (program := line.removeprefix("## python -m apps.")) in ROWS:
        return program, flags_of_class(ROWS[program])
    return ("gpt2", makers[line]()) if line in makers else None


def _marked(what: str) -> str:
    """A help text without its last stop; flags and URLs are marked as code, and a page of docs/ is a link."""
    parts = what.strip().removesuffix(".").split("`")
    for number in range(0, len(parts), 2):  # what is between backticks is marked already
        parts[number] = re.sub(r"(?<![\w-])(--[a-z][\w-]*|\w+://\S+?(?=[,;]?(?:\s|$)))", r"`\1`", parts[number])
        parts[number] = re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", parts[number])
    return "`".join(parts)


if __name__ == "__main__":
    FILE.write_text(written(FILE.read_text()))
