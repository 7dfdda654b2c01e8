"""Finding a schedule by its name. The rule: whoever adds a file has added a schedule, there is no list to edit.

Knows where schedules come from; must not know what any schedule does.
"""

import importlib
import pkgutil
from pathlib import Path
from typing import Protocol

from pipelined.schedules._contract import Layout, ScheduleError, Shape, Worker
from pipelined.schedules._own import is_module, load
from pipelined.schedules._table import read_table

ELSEWHERE = {
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
"""What schedules are called by papers and other libraries, in small letters with underscores, and here."""


class Schedule(Protocol):
    """What a schedule file gives."""

    __name__: str

    def layout(self, shape: Shape) -> Layout:
        """Who holds which stage of which pipe; raises ScheduleError for a shape the schedule cannot take."""
        ...

    async def schedule(self, worker: Worker) -> None:
        """What one worker does in one step."""
        ...


def known() -> list[str]:
    """The names of the schedules that come with the project, sorted."""
    folder = str(Path(__file__).parent)
    return sorted(module.name for module in pkgutil.iter_modules([folder]) if not module.name.startswith("_"))


def require_known(name: str, given: str | None = None) -> None:
    """Refuse a name that was read from a file or sent by a peer, unless it is one of `known()`.

    A path or a module is code, which runs when it is looked up; only the command line may name it.

    Args:
        given: the schedule that the command line names, if any; that name is allowed.
    Raises:
        ScheduleError: another name; nothing has been looked up.
    """
    if name not in known() and name != given:
        fact = f"the schedule {name!r} is none of this project's own, and code that only a file names is not run"
        raise ScheduleError(f"{fact}; give --schedule {name} on the command line too, if you trust it")


def find(name: str) -> Schedule:
    """The schedule of this name: one of `known()`, or the user's own module, .py file or .csv table.

    Raises:
        ScheduleError: there is no such schedule, it cannot be read, or it is not one.
    """
    if name in known():
        return importlib.import_module(f"pipelined.schedules.{name}")
    if name.endswith(".csv"):
        return read_table(Path(name))
    if name.endswith(".py") or is_module(name):
        return load(name, known())
    meant = ELSEWHERE.get(name.lower().replace("-", "_"))
    if meant:
        raise ScheduleError(f"unknown schedule {name!r}; here it is called {meant}")
    choice = f"known: {', '.join(known())}, or a module on the path, or the path of a .py file or a .csv table"
    raise ScheduleError(f"unknown schedule {name!r}; {choice}")
