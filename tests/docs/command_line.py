"""Write the tables of flags in docs/command-line.md from the flags' own help: `python -m tests.docs.command_line`.

A line `<!-- flags: NAME -->` of the page stands before each table. `NAME` is a group of the flags of any run, a set of
flags that several commands have, or one program or command: its table has the flags that no set has, and names its
sets.
"""

import argparse
import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from apps.bert.__main__ import BertFlags
from apps.common.flags.address import DirectoryAddress
from apps.common.flags.command_flags import (
    Coordinator,
    FinalFlags,
    ModelFlags,
    OutputFlags,
    ProcessFlags,
    ShowFlags,
    TextFlags,
)
from apps.common.flags.groups import GROUP_OF, GROUPS, helps_of
from apps.common.flags.run_flags import RunFlags, TextDataFlags, flag
from apps.common.lm.generate import Generate
from apps.common.rows.config import RowFlags
from apps.gpt2.config import GPT2Flags
from apps.gpt2.ravnest.job import NOT_IN_RAVNEST
from apps.gpt2.swarm.job import NOT_IN_SWARM
from apps.llama.__main__ import LlamaFlags
from apps.ravnest import __main__ as ravnest
from apps.ravnest.flags.config import RavnestConfig
from apps.ravnest.flags.groups import FormingFlags
from apps.resnet.__main__ import ResNetFlags
from apps.swarm import __main__ as swarm
from apps.swarm.config import TrainingConfig
from apps.vgg.config import VGGFlags
from pipelined.__main__ import COMMANDS
from pipelined.commands.flags import add_knobs
from tests.launching import ROOT

FILE = ROOT / "docs" / "command-line.md"
Row = tuple[str, str]
"""The default and the help of a flag."""
SETS: Mapping[type, str] = {
    RunFlags: "Flags of every run in pipelines",
    TextDataFlags: "The text of a run",
    RowFlags: "Flags of a row of layers",
    ModelFlags: "Sizes of a transformer",
    DirectoryAddress: "Where a process finds its directory",
    ProcessFlags: "A process",
    TextFlags: "The text of a process",
    FinalFlags: "The model at the end",
    OutputFlags: "An export",
    ShowFlags: "A status",
    TrainingConfig: "What a swarm trains",
    RavnestConfig: "What Ravnest trains",
    FormingFlags: "How clusters are formed",
}
"""The flags that several programs or commands have, by the heading above their table."""
KINDS: Mapping[str, type] = {
    **{heading: kind for kind, heading in SETS.items() if kind is not RunFlags},
    **{"apps.gpt2": GPT2Flags, "apps.gpt2 generate": Generate},
    **{"apps.vgg": VGGFlags, "apps.llama": LlamaFlags, "apps.bert": BertFlags, "apps.resnet": ResNetFlags},
    "coordinator": Coordinator,
    **{
        f"apps.{program} {command}": kind
        for program, of in (("swarm", swarm.COMMANDS), ("ravnest", ravnest.COMMANDS))
        for command, kind in of.flag_classes.items()
        if kind is not Coordinator
    },
}
"""What the tables of dataclasses are named."""
RUN_GROUPS = [group for group in GROUPS if any(GROUP_OF.get(each.name) == group for each in fields(RunFlags))]
"""The groups in which the flags of every run are shown."""
KNOBS, REFUSED = "settings of a schedule", "swarm and ravnest"
NAMES = (*KINDS, *RUN_GROUPS, KNOBS, REFUSED, *(f"pipelined {name}" for name in COMMANDS))
"""Every table of the page."""
NAMED = {"source": "from"}
"""Flags that have another name than their field."""
SEE = {
    (
        "gpt2",
        "--schedule",
    ): "[Schedules](schedules.md), [A swarm](swarm.md#gpt-2), [Ravnest](ravnest.md#ranks-as-nodes)",
    ("run", "--tensor"): "[Workers of several ranks](teams.md#workers-of-several-ranks)",
    ("run", "--plan"): "[The planner](planner.md#where-nothing-is-given)",
    ("apps.gpt2", "--all-reduce"): "[Collectives](collectives.md#what-is-measured)",
    ("run", "--exact-sums"): "[Exact sums](exact-sums.md)",
    ("run", "--shard-optimizer"): "[A divided update](teams.md#a-divided-update)",
    ("run", "--offload-optimizer"): "[Masters](memory.md#masters)",
    ("run", "--delayed-update"): "[One step late](memory.md#one-step-late)",
    ("run", "--compress"): "[Codecs](codecs.md)",
    ("run", "--transport"): "[Transports](transports.md)",
    ("apps.gpt2", "--listen"): "[A swarm](swarm.md#gpt-2)",
    ("run", "--clip"): "[Without a flush](asynchronous.md#what-is-refused)",
    ("run", "--resume"): "[Checkpoints](checkpoints.md#going-on)",
    ("What a swarm trains", "--exact-sums"): "[Exact sums](exact-sums.md#in-a-swarm)",
    ("What a swarm trains", "--delayed-updates"): "[Updates one step late](swarm-design.md#updates-one-step-late)",
    ("pipelined schedule", "--csv"): "[Tables](schedules.md#tables)",
    ("pipelined schedule", "--steps"): "[Without a flush](asynchronous.md)",
    ("pipelined plan", "--stale"): "[Without a flush](asynchronous.md)",
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
    """The flags that a dataclass makes, but for the settings of schedules; the docstring below a field is its help."""
    helps, rows = helps_of(kind), dict[str, Row]()
    for field in (each for each in fields(kind) if get_origin(each.type) is not Mapping):
        if is_dataclass(field.type):
            rows |= flags_of_class(field.type)
        else:
            name = flag(NAMED.get(field.name, field.name))
            rows[name] = shown(field.default), with_choices(helps[field.name], field.type)
    order = [flag(NAMED.get(name, name)) for name in GROUP_OF]
    return {name: rows[name] for name in sorted(rows, key=order.index)}


def with_choices(what: str, kind: Any) -> str:
    """A help text, with the choices of a flag after the first sentence unless the text names them."""
    parts = get_args(kind) if isinstance(kind, UnionType) or get_origin(kind) is Union else (kind,)
    choices = [str(choice) for part in parts if get_origin(part) is Literal for choice in get_args(part)]
    if all(re.search(rf"\b{re.escape(choice)}\b", what) for choice in choices):
        return what
    return re.sub(r"\.(?= |$)", f": {', '.join(choices[:-1])} or {choices[-1]}.", what, count=1)


def flags_of_command(name: str) -> dict[str, Row]:
    """The flags of a command of `python -m pipelined`, but for the settings of schedules."""
    flags = argparse.ArgumentParser(add_help=False)
    importlib.import_module(COMMANDS[name]).add_arguments(flags)
    return found_in(flags)


def takes_knobs(command: str) -> bool:
    return hasattr(importlib.import_module(COMMANDS[command]), "TAKES_KNOBS")


def flags_of_knobs() -> dict[str, Row]:
    """The settings of schedules."""
    flags = argparse.ArgumentParser(add_help=False)
    add_knobs(flags, "")
    return found_in(flags)


def sets_of(kind: type) -> list[type]:
    """The sets that a dataclass has, without those that one of these has."""
    found = [each for each in SETS if each in {*_parts(kind)} - {kind}]
    return [each for each in found if not any(each in {*_parts(other)} - {other} for other in found)]


def _parts(kind: type) -> Iterator[type]:
    """The dataclass, those that it extends, and those of its fields."""
    for base in kind.__mro__[:-1]:
        yield base
        for each in fields(base) if is_dataclass(base) else ():
            if is_dataclass(each.type):
                yield from _parts(each.type)


def own_flags(kind: type) -> dict[str, Row]:
    """The flags of a dataclass that no set of it has, with the same default and help."""
    shared = [row for each in sets_of(kind) for row in flags_of_class(each).items()]
    return {name: row for name, row in flags_of_class(kind).items() if (name, row) not in shared}


def table_of(name: str) -> str:
    """The table that a name stands for, below a line with the sets that it has besides."""
    if name == REFUSED:
        return _refused()
    see, sets = name, list[str]()
    if name in KINDS:
        rows, sets = own_flags(KINDS[name]), [SETS[each] for each in sets_of(KINDS[name])]
    elif name in RUN_GROUPS:
        every, see = flags_of_class(RunFlags), "run"
        rows = {each: row for each, row in every.items() if GROUP_OF[each[2:].replace("-", "_")] == name}
    elif name == KNOBS:
        rows = flags_of_knobs()
    else:
        command = name.removeprefix("pipelined ")
        rows, sets = flags_of_command(command), ["Settings of a schedule"] if takes_knobs(command) else []
    links = [f"[{heading[0].lower()}{heading[1:]}](#{heading.lower().replace(' ', '-')})" for heading in sets]
    lines = [f"Also {' and '.join(filter(None, [', '.join(links[:-1]), links[-1]]))}.", ""] if links else []
    if rows:
        lines += ["| flag | default | what |", "|---|---|---|"]
    for each, (default, what) in rows.items():
        more = SEE.get((see, each))
        lines.append(f"| `{each}` | {default} | {marked(what)}{f'; see {more}' if more else ''} |")
    return "".join(line + "\n" for line in lines).removesuffix("\n\n") + ("" if rows else "\n")


def _refused() -> str:
    """The flags that mean nothing where the ranks are no pipeline, with the reasons."""
    lines, alike = ["| flags | `--schedule swarm` | `--schedule ravnest` |", "|---|---|---|"], dict[str, list[str]]()
    for name in sorted({*NOT_IN_SWARM, *NOT_IN_RAVNEST}, key=list(GROUP_OF).index):
        why = " | ".join(marked(refused.get(name, "*taken*")) for refused in (NOT_IN_SWARM, NOT_IN_RAVNEST))
        alike.setdefault(why, []).append(f"`{flag(name)}`")
    lines += [f"| {', '.join(flags)} | {why} |" for why, flags in alike.items()]
    return "".join(line + "\n" for line in lines)


TABLE = re.compile(r"<!-- flags: (.+) -->\n(?:Also .*\n)?(?:\n?(?:\|.*\n)+)?")
"""A table of the page: the line with its name, the sets, and the rows."""


def written(text: str) -> str:
    """The page with every table as the flags and their help have it."""
    return TABLE.sub(lambda found: f"<!-- flags: {found[1]} -->\n{table_of(found[1])}", text)


def marked(what: str) -> str:
    """A help text without its last stop; flags and URLs are marked as code, and a page of docs/ is a link."""
    parts = what.strip().removesuffix(".").split("`")
    for number in range(0, len(parts), 2):  # what is between backticks is marked already
        parts[number] = re.sub(r"(?<![\w-])(--[a-z][\w-]*|\w+://\S+?(?=[,;]?(?:\s|$)))", r"`\1`", parts[number])
        parts[number] = re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", parts[number])
    return "`".join(parts)


if __name__ == "__main__":
    FILE.write_text(written(FILE.read_text()))
