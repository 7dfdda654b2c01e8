"""A dataclass of flags as a command line; its help has the flags in groups. No torch.

The dataclass may have further dataclasses as fields; a flag of any of them stands in the group of the table. The
docstring below a field is the help of its flag.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass, make_dataclass
from functools import cache
from itertools import pairwise
from textwrap import dedent
from typing import Annotated, Any, TypeVar, get_origin

import tyro

from apps.common.flags.metavars import metavar_of
from apps.common.flags.parse_errors import parse_or_refuse, unknown_flags
from pipelined.errors import UsageError, guess
from pipelined.schedules import Knob

SCHEDULE = "schedule and plan"
"""The group that also has the settings of schedules."""
GROUPS: Mapping[str, tuple[str, ...]] = {
    name: tuple(names.split())
    for name, names in {
        "directory and members": "coordinator directory name pool nodes peers trainers stage slots grace lease "
        "rebalance members",
        "model": "source preset layers d_model heads vocab positions dropout tied shared squeeze factor bytes init",
        "data": "data val_data eval_windows tokenizer side",
        "batch": "batch microbatch microbatches seq steps eval_every seed",
        SCHEDULE: "schedule depth stages width tensor layout ahead plan",
        "optimizer": "optimizer lr warmup lr_schedule min_lr beta1 beta2 eps weight_decay clip delayed_updates",
        "devices and memory": "device share_devices ram flops dtype weights recompute recompute_attention compile "
        "shard_optimizer offload_optimizer delayed_update",
        "transport and sums": "transport listen bandwidth delay links all_reduce exact_sums compress compress_sums",
        "clusters": "clusters balance objective method backups reliability newcomers average_every average weigh",
        "saving": "checkpoint saves save_every async_save keep resume new_data export to journal orders",
        "sampling": "sample prompt tokens temperature top_k top_p context",
        "output": "digest metrics tensorboard wandb trace replay json watch web png log",
        "configuration": "config print_config dry_run",
    }.items()
}
"""The flags of all programs, as fields, by the group in which help shows them, in this order."""
GROUP_OF = {name: group for group, names in GROUPS.items() for name in names}

T = TypeVar("T")


def parse_words(
    kind: type[T],
    words: Sequence[str],
    program: str,
    *,
    about: str = "",
    default: T | None = None,
    knobs: Sequence[Knob[Any]] = (),
) -> tuple[T, Mapping[str, Any]]:
    """Make flags of the words of a command line; the classes' own checks of values run after the parser.

    Args:
        kind: the dataclass.
        program: how the program is called, for help and errors.
        about: the first lines of --help. Default: the docstring of `kind`.
        default: the values of flags that are not given. Default: those of `kind`.
        knobs: settings of the schedule, each of which is a flag, too.
    Returns: the flags, and every value by the name of its field or knob.
    Raises:
        SystemExit: 0 after --help. UsageError: an unknown flag, a value of another type, or as `kind` raises.
    """
    form = form_of(kind, default, knobs)
    settings = _parser_settings(words, program, about or kind.__doc__)
    values = values_of(parse_or_refuse(program, lambda: tyro.cli(form, **settings), unknown_flags(form, words, {})))
    return fill(kind, values), values


def parse_command(commands: Mapping[str, type[T]], words: Sequence[str], program: str, about: str) -> T:
    """The same for a program of several commands: the flags of the command that the words begin with."""
    forms = {name: form_of(kind) for name, kind in commands.items()}
    settings = _parser_settings(words, program, about)
    command = program
    unknown = dict[str, str]()
    if words and words[0] in forms:
        command = f"{program} {words[0]}"
        unknown = unknown_flags(forms[words[0]], words, forms)
    elif not words:
        raise UsageError(f"a command must be given; known: {', '.join(forms)}; {program} --help describes them")
    elif words[0] not in ("-h", "--help"):
        fact = f"there is no command {words[0]}; {guess(words[0], forms)}known: {', '.join(forms)}"
        raise UsageError(f"{fact}; {program} --help describes them")
    filled = parse_or_refuse(command, lambda: tyro.extras.subcommand_cli_from_dict({**forms}, **settings), unknown)
    name = next(name for name, form in forms.items() if type(filled) is form)
    return fill(commands[name], values_of(filled))


def _parser_settings(words: Sequence[str], program: str, about: str | None) -> dict[str, Any]:
    no_source = tyro.conf.HelptextFromCommentsOff  # each flag has its help; to read the source takes a while
    markers = (tyro.conf.OmitArgPrefixes, tyro.conf.DisallowNone, no_source)
    return {"args": words, "prog": program, "description": about, "config": markers}


def form_of(kind: type, default: Any = None, knobs: Sequence[Knob[Any]] = ()) -> type:
    """A dataclass with a dataclass of flags for each group, of which the parser makes a command line.

    Raises:
        UsageError: a knob has the name of another flag.
    """
    flags_by_name = dict(_flags_of(kind, default))
    for name in {knob.name for knob in knobs} & flags_by_name.keys():
        raise UsageError(f"the knob {name} of the schedule has the name of another flag; rename it")
    groups: dict[str, list[tuple[str, Any, Any]]] = {group: [] for group in GROUPS}
    for name in sorted(flags_by_name, key=list(GROUP_OF).index):
        groups[GROUP_OF[name]].append((name, *flags_by_name[name]))
    groups[SCHEDULE] += [
        (knob.name, *_flag(knob.name, type(knob.default), knob.default, _sentence(knob.help))) for knob in knobs
    ]
    group_fields = [
        (group.replace(" ", "_"), Annotated[_group(group, flags), tyro.conf.arg(name=group)])
        for group, flags in groups.items()
        if flags
    ]
    return make_dataclass(kind.__name__, group_fields, namespace={"__doc__": kind.__doc__}, frozen=True)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _group(name: str, flags: Sequence[tuple[str, Any, Any]]) -> type:
    return make_dataclass(name.title().replace(" ", ""), flags, kw_only=True, frozen=True)


def _flags_of(kind: type, default: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """The name of each flag with its type and its default, as a field of a dataclass has them."""
    helps = helps_of(kind)
    for entry in fields(kind):
        value = _default(entry) if default in (None, MISSING) else getattr(default, entry.name)
        if is_dataclass(entry.type):
            yield from _flags_of(entry.type, value)  # type: ignore[arg-type]
        elif get_origin(entry.type) is not Mapping:  # the settings of a schedule
            yield entry.name, _flag(entry.name, entry.type, value, helps[entry.name])


def _default(entry: Field[Any]) -> Any:
    return entry.default if entry.default_factory is MISSING else entry.default_factory()


def _flag(name: str, kind: Any, default: Any, text: str) -> tuple[Any, Any]:
    """The type of a flag with its help, and its default; what an open flag means, its help says in words."""
    metavar = metavar_of(name, kind)
    if default is MISSING:
        return Annotated[kind, tyro.conf.arg(help=text, metavar=metavar)], field()
    hint = f"(default: {_in_words(default)})" if default not in (None, "", ()) else ""
    argument = tyro.conf.arg(help=text, metavar=metavar, help_behavior_hint=hint)
    return Annotated[kind, argument], field(default=default)


def _in_words(default: Any) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default)


def values_of(form: Any) -> dict[str, Any]:
    """Every value of a form, by the name of its flag."""
    return {entry.name: getattr(group, entry.name) for group in vars(form).values() for entry in fields(group)}


def fill(kind: type[T], values: Mapping[str, Any]) -> T:
    """A dataclass of flags with their values; what is no flag keeps its default."""
    field_values = {
        entry.name: fill(entry.type, values) if is_dataclass(entry.type) else values[entry.name]  # type: ignore[arg-type]
        for entry in fields(kind)  # type: ignore[arg-type]
        if is_dataclass(entry.type) or entry.name in values
    }
    return kind(**field_values)


@cache
def helps_of(kind: type) -> Mapping[str, str]:
    """The help of every field: the docstring below it, in the class or in one that this extends, on one line."""
    return {name: text for base in reversed(kind.__mro__[:-1]) for name, text in _helps(base)}


def _helps(kind: type) -> Iterator[tuple[str, str]]:
    """The fields that a class itself has, each with the docstring below it."""
    (definition,) = ast.parse(dedent(inspect.getsource(kind))).body
    for node, text in pairwise(definition.body if isinstance(definition, ast.ClassDef) else ()):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(text, ast.Expr):
            yield node.target.id, " ".join(ast.literal_eval(text.value).split())
