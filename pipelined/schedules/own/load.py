"""A user's own schedule: a .py file, a module on the path, or a class or function in one; an error becomes one message.

A schedule has one name on all ranks, in plans and in checkpoints: PATH.py, MODULE, or MODULE:NAME for a class or
function, also of the program itself (`__main__:NAME`).
"""

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from pipelined.schedules.own.bounded import announced, bounded
from pipelined.schedules.parts.knobs import Knob
from pipelined.schedules.parts.shapes import one_pipe
from pipelined.schedules.parts.stage_map import ScheduleError, Shape, StageMap
from pipelined.schedules.parts.worker import Worker

EARLIER = {
    "ready": "write worker.here(op, pipe)",
    "comes": "write await worker.wait((op, pipe), patience=0.25)",
    "first_of": "write await worker.wait((op, pipe), …)",
    "enters": 'write await worker.wait(("F", pipe))',
    "pipes": "write PIPES.of(shape), with PIPES from pipelined.schedules",
    "chunks": "write CHUNKS.of(shape), with CHUNKS from pipelined.schedules",
    "scale": "write SCALE.of(shape), with SCALE from pipelined.schedules",
}
"""Attributes of a worker and a shape that an earlier version had, and what to write now."""

TAKEN = ("schedule", "depth", "width", "microbatch", "microbatches", "recompute", "steps")
"""Settings that every schedule has, so that no knob may have their names."""


SomeSchedule = str | os.PathLike[str] | ModuleType | type[Any] | Callable[[Worker], Coroutine[Any, Any, None]]
"""A schedule as a user gives it: by name, path or module, or a class or async function of its own."""


@dataclass(frozen=True)
class OwnSchedule:
    """A user's schedule, with checks around its `stage_map`.

    Args:
        name: the name under which every rank finds it.
        source: the module, or a class with both functions as methods, or the function `schedule` alone: such a
            schedule has one pipe, with stage s on worker s.
    """

    name: str
    source: Any

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def KNOBS(self) -> tuple[Knob[Any], ...]:
        """The knobs that it declares."""
        return tuple(getattr(self.source, "KNOBS", ()))

    @property
    def missing(self) -> list[str]:
        """The functions that it lacks."""
        if inspect.isfunction(self.source):
            return []
        return [part for part in ("stage_map", "schedule") if not callable(getattr(self.source, part, None))]

    def stage_map(self, shape: Shape) -> StageMap:
        """The stage map that the module returns.

        Raises:
            ScheduleError: the module raised (any exception), does not stop, or did not return a StageMap of numbers.
        """
        if inspect.isfunction(self.source):
            return one_pipe(self.name, shape)
        with bounded(f"the stage map of {self.__name__}", shape.depth * shape.microbatches * shape.steps):
            answer = run_user_code(f"cannot lay out {self.__name__}", lambda: self._functions().stage_map(shape))
        if not isinstance(answer, StageMap):
            raise ScheduleError(f"the stage map of {self.__name__} is no StageMap (but {answer!r}); return StageMap(…)")
        for (pipe, stage), worker in answer.placement.items():
            if isinstance(worker, tuple):  # as earlier versions wanted it
                fact = f"the stage map of {self.__name__} places stage {stage} of pipe {pipe} on {worker}"
                raise ScheduleError(f"{fact}; give the number of one worker")
        return answer

    def schedule(self, worker: Worker) -> Coroutine[Any, Any, None]:
        """Its coroutine for a worker."""
        return self.source(worker) if inspect.isfunction(self.source) else self._functions().schedule(worker)

    def _functions(self) -> Any:
        """The object that has both functions: of a class, an instance."""
        return self.source() if isinstance(self.source, type) else self.source


def name_of(schedule: SomeSchedule) -> str:
    """The name of a schedule, under which every rank finds it.

    Raises:
        ScheduleError: it is no schedule, or other ranks could not find it: it is not at the top of its module.
    """
    if isinstance(schedule, str | os.PathLike):
        return os.fspath(schedule)
    if isinstance(schedule, ModuleType):
        return schedule.__name__
    name = f"{getattr(schedule, '__module__', '?')}:{getattr(schedule, '__qualname__', repr(schedule))}"
    if not isinstance(schedule, type) and not inspect.isfunction(schedule):
        raise ScheduleError(f"{schedule!r} is no schedule; give its name, a class, or an async function of a worker")
    try:
        found = _imported(name)
    except (ImportError, AttributeError):
        found = None
    if found is not schedule:
        remedy = "define it at the top of a module or of a notebook's cell"
        raise ScheduleError(f"the schedule {name} cannot be found under that name; {remedy}")
    return name


def load(name: str, others: Sequence[str]) -> OwnSchedule:
    """Import a schedule; a slow import is announced on stderr, with the line that it has reached.

    Args:
        name: the path of a .py file, the name of a module on the path, or MODULE:NAME.
        others: the known schedules, for the error message.
    Raises:
        ScheduleError: it cannot be imported, or lacks one of the two functions.
    """
    remedy = f"correct it, or name one of the known: {', '.join(others)}"
    with announced(f"importing the schedule {name!r}"):
        source = run_user_code(f"cannot import the schedule {name!r}", lambda: _imported(name), remedy)
    schedule = OwnSchedule(name, source)
    if schedule.missing:
        need = "stage_map(shape) and async schedule(worker)"
        raise ScheduleError(f"{name} is no schedule (it lacks {', '.join(schedule.missing)}); it must define {need}")
    for knob in schedule.KNOBS:
        if not isinstance(knob, Knob) or not knob.name.isidentifier() or knob.name in TAKEN:
            fact = f"{name} declares {knob!r}, which cannot be a knob"
            raise ScheduleError(f"{fact}; declare Knob(NAME, DEFAULT, HELP) with a name other than {', '.join(TAKEN)}")
    return schedule


def is_module(name: str) -> bool:
    """Whether a name may be a module on the path. A dotted name is accepted unchecked: checking would import."""
    return (
        "." in name
        or ":" in name
        or (name.isidentifier() and name != "__main__" and importlib.util.find_spec(name) is not None)
    )


def run_user_code(what: str, work: Callable[[], Any], remedy: str = "correct it") -> Any:
    """Run a user's code; turn each exception into one message with the file and line.

    Args:
        what: the beginning of that message; `remedy` is its end.
    Raises:
        ScheduleError: raised by the code itself, or made from the exception that it raised.
    """
    try:
        return work()
    except ScheduleError:
        raise
    except (Exception, SystemExit) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        if isinstance(error, AttributeError) and isinstance(error.obj, Worker | Shape):
            remedy = EARLIER.get(str(error.name), remedy)
        where = "" if isinstance(error, SyntaxError | ImportError | OSError) else f" at {frame.filename}:{frame.lineno}"
        raise ScheduleError(f"{what} ({type(error).__name__}: {error}{where}); {remedy}") from error


def _imported(name: str) -> Any:
    """What has this name. A file is imported again only after it has changed, so that its classes stay identical."""
    if not name.endswith(".py"):
        place, _, inside = name.partition(":")
        return attrgetter(inside)(importlib.import_module(place)) if inside else importlib.import_module(place)
    path = Path(name).resolve()
    key = f"<{path} {path.stat().st_mtime_ns}>"  # not a valid module name, so it cannot hide another module
    if key in sys.modules:
        return sys.modules[key]
    spec = importlib.util.spec_from_file_location(key, path)
    assert spec and spec.loader  # as the name ends in .py
    module = sys.modules[key] = importlib.util.module_from_spec(spec)  # @dataclass looks its module up in sys.modules
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[key]
        raise
    return module
