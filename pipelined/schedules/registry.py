"""The table of schedules, and the search for a schedule by name, path or module."""

import importlib
import shlex
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Protocol

from pipelined.errors import guess
from pipelined.schedules.parts.stage_map import ScheduleError, Shape, StageMap
from pipelined.schedules.parts.worker import Worker
from pipelined.schedules.user.bounded import limit_bytecodes
from pipelined.schedules.user.load import is_module, load
from pipelined.schedules.user.table import read_table

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
    "interleaved_zero_bubble": "zb_h1",  # its order with one stage a worker; none here has several
    "zbv": "zb_v",
    "zbv_zero_bubble": "zb_v",
    "dualpipev": "dualpipe_v",
    "2bw": "pipedream_2bw",
    "ravnest": "async_1f1b",
}
"""Names of schedules in papers and other libraries, to their names here; case, dashes and underscores do not count."""


class UnknownSchedule(ScheduleError):
    """There is no schedule of this name; the message lists the known ones, and other names that a program takes."""

    def __init__(self, name: str, other_names: Iterable[str] = ()):
        names = [*schedule_names(), *other_names]
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


def schedule_names() -> list[str]:
    """The names of the schedules that come with the project, sorted."""
    return sorted(SCHEDULES)


def find(name: str) -> Schedule:
    """The schedule of this name: one of `schedule_names()`, or the user's module, .py file or .csv table.

    Raises:
        ScheduleError: there is no such schedule, it cannot be read, or it is not a schedule.
    """
    if name in SCHEDULES:
        return importlib.import_module(SCHEDULES[name])
    if name.endswith(".csv"):
        return read_table(Path(name))
    if is_users(name):
        return load(name, schedule_names())
    names_here = ALIASES | {known_name: known_name for known_name in SCHEDULES}
    by_spelling = {_normalise_name(spelling): name_here for spelling, name_here in names_here.items()}
    if name_here := by_spelling.get(_normalise_name(name)):
        raise ScheduleError(f"unknown schedule {name!r}; here it is called {name_here}")
    raise UnknownSchedule(name)


def _normalise_name(name: str) -> str:
    """A name as it is compared; torch's classes begin with "Schedule"."""
    return name.lower().replace("-", "").replace("_", "").removeprefix("schedule")


def is_builtin(schedule: Schedule) -> bool:
    """Whether a schedule is one of this project's, which are code that all ranks have."""
    return isinstance(schedule, ModuleType) and schedule.__name__ in SCHEDULES.values()


def bytecode_limit(schedule: Schedule, what: str, instructions: int) -> AbstractContextManager[None]:
    """As `limit_bytecodes`, for a user's schedule. This project's schedules end, and run without the overhead."""
    return nullcontext() if is_builtin(schedule) else limit_bytecodes(what, instructions)


def label(schedule: Schedule) -> str:
    """The name of a schedule, as `find` takes it."""
    return schedule.__name__.rpartition(".")[2] if is_builtin(schedule) else schedule.__name__


def is_users(name: str) -> bool:
    """Whether a name refers to a user's module or .py file."""
    if name in SCHEDULES or name.endswith(".csv"):
        return False
    return name.endswith(".py") or is_module(name)


def require_known(name: str, trusted: str | None = None) -> None:
    """Refuse a name that was read from a file or sent by a peer, unless it is one of `schedule_names()`.

    A path or a module is code, and looking it up runs that code; so only the command line may name it.

    Args:
        trusted: the schedule that the command line names, if any; this name is allowed too.
    Raises:
        ScheduleError: another name; nothing has been imported.
    """
    if name not in SCHEDULES and name != trusted:
        fact = f"the schedule {name!r} is not one of this project's, and code that only a file names is not run"
        raise ScheduleError(f"{fact}; give --schedule {shlex.quote(name)} on the command line too, if you trust it")
