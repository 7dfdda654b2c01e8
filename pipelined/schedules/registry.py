"""The table of schedules, and the search for a schedule by name, path or module."""

import importlib
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from pipelined.errors import guess
from pipelined.schedules.parts.knobs import CHUNKS, Knob, KnobValue
from pipelined.schedules.parts.stage_map import ScheduleError, Shape, StageMap
from pipelined.schedules.parts.worker import Worker
from pipelined.schedules.user.load import is_module, load
from pipelined.schedules.user.table import TableSchedule, read_table

SCHEDULES = {
    "async_1f1b": "pipelined.schedules.async_1f1b",
    "chimera": "pipelined.schedules.chimera",
    "chimera_w": "pipelined.schedules.chimera_w",
    "dualpipe": "pipelined.schedules.dualpipe",
    "dualpipe_v": "pipelined.schedules.dualpipe_v",
    "gems": "pipelined.schedules.gems",
    "gpipe": "pipelined.schedules.gpipe",
    "interleaved": "pipelined.schedules.interleaved",
    "one_f_one_b": "pipelined.schedules.one_f_one_b",
    "pipedream": "pipelined.schedules.pipedream",
    "pipedream_2bw": "pipelined.schedules.pipedream_2bw",
    "zb_h1": "pipelined.schedules.zb_h1",
    "zb_v": "pipelined.schedules.zb_v",
}
"""The module of each schedule, by name (its file's name); imported on first use. A new schedule gets a line here."""

ALIASES = {
    "1f1b": "one_f_one_b",
    "dapple": "one_f_one_b",
    "pipedream_flush": "one_f_one_b",
    "interleaved_1f1b": "interleaved",
    "zb1p": "zb_h1",
    "zbv": "zb_v",
    "zbv_zero_bubble": "zb_v",
    "dualpipev": "dualpipe_v",
    "2bw": "pipedream_2bw",
    "ravnest": "async_1f1b",
}
"""Names of schedules in papers and other libraries, to their names here; case, dashes and underscores do not count."""


class UnknownSchedule(ScheduleError):
    """There is no schedule of this name; the message lists the known ones, and other names that a program takes."""

    def __init__(self, name: str, others: Iterable[str] = ()):
        names = [*known(), *others]
        choice = f"known: {', '.join(names)}, or a module on the path, or the path of a .py file or a .csv table"
        super().__init__(f"unknown schedule {name!r}; {guess(name, names)}{choice}")


class Schedule(Protocol):
    """The two functions that a schedule module defines."""

    @property
    def __name__(self) -> str: ...

    def stage_map(self, shape: Shape) -> StageMap:
        """Which worker holds which stage of which pipe; raises ScheduleError for a shape the schedule cannot take."""

    async def schedule(self, worker: Worker) -> None:
        """Run one step on one worker."""


def known() -> list[str]:
    """The names of the schedules that come with the project, sorted."""
    return sorted(SCHEDULES)


def knobs_of(name: str | None = None) -> tuple[Knob[Any], ...]:
    """The knobs of all schedules of the project, and those of the user's schedule of this name, if it is one.

    A setting has one meaning for all schedules, so that plans of two schedules can be compared and any of them
    written to a file; a schedule refuses a value that it cannot take. Code of the user is imported and run.

    Raises:
        ScheduleError: the user's schedule cannot be read, or declares a knob of this project with another meaning.
    """
    knobs = _knobs_of_the_project()
    if name in SCHEDULES or not (name and is_users(name)):
        return tuple(knobs.values())
    users = {knob.name: knob for knob in declared(load(name, known()))}
    for taken in {*users} & {*knobs}:
        if users[taken] != knobs[taken]:
            fact = f"{name} declares the knob {taken}, which is one of this project's"
            raise ScheduleError(f"{fact}; import {taken.upper()} from pipelined.schedules, or give it another name")
    return tuple({**knobs, **users}.values())


@cache
def _knobs_of_the_project() -> dict[str, Knob[Any]]:
    return {knob.name: knob for name in known() for knob in declared(find(name))}


def require_knobs(name: str | None, given: Mapping[str, Any], keywords: Iterable[str] = ()) -> None:
    """Refuse settings that are no knobs, or that the schedule does not declare; a misspelt argument is one, too.

    Args:
        name: the schedule; None: it is open, and may be any of the project.
        keywords: the other arguments of that function.
    Raises:
        ScheduleError: an unknown name; the message has the nearest of all, and lists those of the schedule. Or as
            `require_declared`.
    """
    knobs = knobs_of(name)
    for setting in given:
        if setting not in [knob.name for knob in knobs]:
            taken = [knob.name for knob in (declared(find(name)) if name else knobs)]
            takes = f"takes: {', '.join(taken)}" if taken else "takes no settings"
            fact = f"unknown argument {setting!r} ({name or 'a schedule'} {takes})"
            raise ScheduleError(f"{fact}; {guess(setting, [*keywords, *taken])}correct the name, or leave it out")
    require_declared(name, given)


def require_declared(name: str | None, knobs: Mapping[str, Any]) -> None:
    """Refuse knobs that a user's schedule does not declare; the project's schedules say which values they take.

    Raises:
        ScheduleError: the message names the schedule and the knobs that it has.
    """
    if name is None or not is_users(name):
        return
    names = [knob.name for knob in declared(find(name))]
    for knob in knobs_of(name):
        if knob.name not in names and (value := knobs.get(knob.name, knob.default)) != knob.default:
            has = f"its knobs: {', '.join(names)}" if names else "it has none"
            fact = f"{name} does not declare the knob {knob.name} ({knob.name}: {value}, {has})"
            raise ScheduleError(f"{fact}; leave `{knob.name}=` out, or add {knob.name.upper()} to its KNOBS")


def default_depth(name: str, workers: int, knobs: Mapping[str, KnobValue]) -> tuple[int, dict[str, KnobValue]]:
    """The depth of a schedule for a number of workers, and its knobs: one stage on each worker where that is possible.

    zb_v and dualpipe_v have two stages on each worker, and interleaved gets two where its chunks are open. A table has
    its own depth.
    """
    knobs = dict(knobs)
    if fixed := table_shape(find(name)):
        return fixed.depth, knobs
    if CHUNKS in declared(find(name)):
        knobs.setdefault(CHUNKS.name, 2)
    chunks = CHUNKS.check(knobs.get(CHUNKS.name, CHUNKS.default))
    for depth in (workers, 2 * workers, chunks * workers):
        if workers_of(name, depth, knobs) == workers:
            return depth, knobs
    return workers, knobs


def divide_stages(name: str, depth: int, workers: int, knobs: Mapping[str, KnobValue]) -> dict[str, KnobValue]:
    """The knobs of a schedule, and where its chunks are open those that divide the stages among the workers equally.

    They stay open where the schedule declares none, or cannot have this depth on these workers.
    """
    given = dict(knobs)
    if CHUNKS.name not in given and CHUNKS in declared(find(name)) and depth % workers == 0:
        divided = {**given, CHUNKS.name: depth // workers}
        return divided if workers_of(name, depth, divided) == workers else given
    return given


def default_microbatches(name: str, depth: int) -> int:
    """The microbatches of a pipeline of this depth where they are open: two a stage, or those of a table."""
    fixed = table_shape(find(name))
    return fixed.microbatches if fixed else 2 * depth


def workers_of(name: str, depth: int, knobs: Mapping[str, KnobValue]) -> int | None:
    """The workers of a pipeline of this depth; None: the schedule refuses it."""
    with suppress(ScheduleError):
        return find(name).stage_map(Shape(depth, default_microbatches(name, depth), knobs)).workers
    return None


def table_shape(schedule: Schedule) -> Shape | None:
    """The one shape that a schedule takes, if it is a table; None: it takes several."""
    return schedule.shape if isinstance(schedule, TableSchedule) else None


def declared(schedule: Schedule) -> tuple[Knob[Any], ...]:
    """The knobs that a schedule declares in `KNOBS`; a schedule without any need not have it."""
    return getattr(schedule, "KNOBS", ())


def is_builtin(schedule: Schedule) -> bool:
    """Whether a schedule is one of this project's, which are code that all ranks have."""
    return isinstance(schedule, ModuleType) and schedule.__name__ in SCHEDULES.values()


def label(schedule: Schedule) -> str:
    """The name of a schedule, as `find` takes it."""
    return schedule.__name__.rpartition(".")[2] if is_builtin(schedule) else schedule.__name__


def is_users(name: str) -> bool:
    """Whether a name is that of a user's module or .py file."""
    if name in SCHEDULES or name.endswith(".csv"):
        return False
    return name.endswith(".py") or is_module(name)


def require_known(name: str, given: str | None = None) -> None:
    """Refuse a name that was read from a file or sent by a peer, unless it is one of `known()`.

    A path or a module is code, and looking it up runs that code; so only the command line may name it.

    Args:
        given: the schedule that the command line names, if any; this name is allowed too.
    Raises:
        ScheduleError: another name; nothing has been imported.
    """
    if name not in SCHEDULES and name != given:
        fact = f"the schedule {name!r} is not one of this project's, and code that only a file names is not run"
        raise ScheduleError(f"{fact}; give --schedule {shlex.quote(name)} on the command line too, if you trust it")


def find(name: str) -> Schedule:
    """The schedule of this name: one of `known()`, or the user's module, .py file or .csv table.

    Raises:
        ScheduleError: there is no such schedule, it cannot be read, or it is not a schedule.
    """
    if name in SCHEDULES:
        return importlib.import_module(SCHEDULES[name])
    if name.endswith(".csv"):
        return read_table(Path(name))
    if is_users(name):
        return load(name, known())
    names = {_normalise_name(each): here for each, here in (ALIASES | {ours: ours for ours in SCHEDULES}).items()}
    if meant := names.get(_normalise_name(name)):
        raise ScheduleError(f"unknown schedule {name!r}; here it is called {meant}")
    raise UnknownSchedule(name)


def _normalise_name(name: str) -> str:
    """A name as it is compared; torch's classes begin with "Schedule"."""
    return name.lower().replace("-", "").replace("_", "").removeprefix("schedule")
