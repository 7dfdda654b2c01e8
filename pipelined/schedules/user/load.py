"""A user's schedule: a .py file, a module on the path, or a class or function in one; an error becomes one message.

A schedule has one name on all ranks, in plans and in checkpoints: PATH.py, MODULE, or MODULE:NAME for a class or
function, also of the program itself (`__main__:NAME`).
"""

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from pipelined.errors import got, user_code
from pipelined.schedules.parts.knobs import DECLARATION, Knob
from pipelined.schedules.parts.placements import one_pipe
from pipelined.schedules.parts.stage_map import ScheduleError, Shape, StageMap
from pipelined.schedules.parts.worker import Worker
from pipelined.schedules.user.bounded import announce_if_slow, limit_bytecodes

PLAN_KEYS = ("schedule", "depth", "width", "microbatch", "microbatches", "tensor", "layout", "costs")
"""The keys of a plan's JSON besides its knobs."""
RESERVED = (*PLAN_KEYS, "recompute", "steps")
"""Settings that every schedule has, so that no knob may have their names."""

SomeSchedule = str | os.PathLike[str] | ModuleType | type[Any] | Callable[[Worker], Coroutine[Any, Any, None]]
"""A schedule as a user gives it: by name, path or module, or a class or async function of its own."""


@dataclass(frozen=True)
class UserSchedule:
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

    def stage_map(self, shape: Shape) -> StageMap:
        """The stage map that the module returns.

        Raises:
            ScheduleError: the module raised (any exception), does not stop, or did not return a StageMap of the shape.
        """
        if inspect.isfunction(self.source):
            return one_pipe(self.name, shape)
        what = f"the stage map of {self.__name__}"
        with (
            limit_bytecodes(what, shape.depth * shape.microbatches * shape.steps),
            user_code(what, "correct it", ScheduleError, may_exit=False),
        ):
            result = self._functions().stage_map(shape)
        if not isinstance(result, StageMap):
            raise ScheduleError(f"the stage map of {self.__name__} must be a StageMap {got(result)}; return one")
        self._require_types(result)
        self._require_shape(result, shape)
        return result

    def _require_types(self, stage_map: StageMap) -> None:
        """Refuse a stage map with a value of another type, which fails far from the line that gave it."""
        fact = f"the stage map of {self.__name__}"
        places = "give {(pipe, stage): worker}"
        if not isinstance(stage_map.placement, Mapping):
            raise ScheduleError(f"{fact} has the placement {stage_map.placement!r}; {places}")
        for place, worker in stage_map.placement.items():
            if not isinstance(place, tuple) or len(place) != 2:
                raise ScheduleError(f"{fact} has the key {place!r} instead of (pipe, stage); {places}")
            if not isinstance(worker, int):
                fault = f"places stage {place[1]} of pipe {place[0]} on {worker!r}"
                raise ScheduleError(f"{fact} {fault}; give the number of one worker")
        if not isinstance(stage_map.workers, int):
            raise ScheduleError(f"{fact} has {stage_map.workers!r} workers; give their number")
        pipes = stage_map.microbatches
        if not isinstance(pipes, Sequence) or not all(isinstance(pipe, Sequence) for pipe in pipes):
            raise ScheduleError(f"{fact} has the microbatches {pipes!r}; give one tuple of numbers for each pipe")

    def _require_shape(self, stage_map: StageMap, shape: Shape) -> None:
        """Refuse the stage map of another depth, or of other microbatches: a batch's other rows would be left out."""
        steps = 1 if stage_map.updates.flushes else shape.steps  # more steps with a flush are refused by `record`
        microbatches = sum(map(len, stage_map.microbatches))
        requested_microbatches = shape.microbatches * steps * stage_map.pieces
        if (stage_map.depth, microbatches) != (shape.depth, requested_microbatches):
            fact = f"the stage map of {self.__name__} is of another shape (depth: {stage_map.depth}, requested: "
            fact += f"{shape.depth}; microbatches: {microbatches}, requested: {requested_microbatches})"
            raise ScheduleError(f"{fact}; make it from shape.depth and shape.microbatches, or request that shape")

    def schedule(self, worker: Worker) -> Coroutine[Any, Any, None]:
        """Its coroutine for a worker."""
        return self.source(worker) if inspect.isfunction(self.source) else self._functions().schedule(worker)

    def _functions(self) -> Any:
        """The object that has both functions; a class is instantiated."""
        return self.source() if isinstance(self.source, type) else self.source


def name_of(schedule: SomeSchedule) -> str:
    """The name of a schedule, under which every rank finds it.

    Raises:
        ScheduleError: it is not a schedule, or other ranks could not find it: it is not at the top of its module.
    """
    if isinstance(schedule, str | os.PathLike):
        return os.fspath(schedule)
    if isinstance(schedule, ModuleType):
        return schedule.__name__
    name = f"{getattr(schedule, '__module__', '?')}:{getattr(schedule, '__qualname__', repr(schedule))}"
    if not isinstance(schedule, type) and not inspect.isfunction(schedule):
        need = "a schedule must be a name, a class or an async function of a worker"
        raise ScheduleError(f"{need} {got(schedule)}; of a plan give plan.schedule")
    try:
        source = _import_name(name)
    except (ImportError, AttributeError):
        source = None
    if source is not schedule:
        remedy = "define it at the top of a module or of a notebook's cell"
        raise ScheduleError(f"the schedule {name} cannot be found under that name; {remedy}")
    return name


def load(name: str, known_names: Sequence[str]) -> UserSchedule:
    """Import a schedule; a slow import is announced on stderr, with the line that it has reached.

    Args:
        name: the path of a .py file, the name of a module on the path, or MODULE:NAME.
        known_names: the known schedules, for the error message.
    Raises:
        ScheduleError: it cannot be imported, or lacks one of the two functions.
    """
    remedy = f"correct it, or name one of the known: {', '.join(known_names)}"
    what = f"importing the schedule {name!r}"
    with announce_if_slow(what), user_code(what, remedy, ScheduleError, may_exit=False):
        source = _import_name(name)
    functions = [] if inspect.isfunction(source) else ["stage_map", "schedule"]
    if gaps := [function for function in functions if not callable(getattr(source, function, None))]:
        need = "stage_map(shape) and async schedule(worker)"
        raise ScheduleError(f"{name} does not define a schedule (it lacks {', '.join(gaps)}); let it define {need}")
    _require_knobs(name, getattr(source, "KNOBS", ()))
    return UserSchedule(name, source)


def _require_knobs(name: str, knobs: object) -> None:
    """Refuse what a schedule declares as its `KNOBS`, unless it is a sequence of knobs with names of their own."""
    if not isinstance(knobs, Sequence) or isinstance(knobs, str):
        raise ScheduleError(f"the KNOBS of {name} must be a tuple of knobs {got(knobs)}; write KNOBS = (KNOB,)")
    names = set[str]()
    for knob in knobs:
        if not isinstance(knob, Knob) or knob.name in RESERVED:
            fact = f"{name} declares {knob!r}, which cannot be a knob"
            raise ScheduleError(f"{fact}; declare {DECLARATION} with a name other than {', '.join(RESERVED)}")
        if knob.name in names:
            raise ScheduleError(f"{name} declares two knobs of the name {knob.name}; give each a name of its own")
        names.add(knob.name)


def is_module(name: str) -> bool:
    """Whether a name may be a module on the path. A dotted name is accepted unchecked: checking would import."""
    if name.isidentifier():
        return name != "__main__" and importlib.util.find_spec(name) is not None
    return not name.startswith((".", ":")) and ("." in name or ":" in name)


def _import_name(name: str) -> Any:
    """What has this name. A file is imported again only after it has changed, so that its classes stay identical."""
    if not name.endswith(".py"):
        module_name, _, qualified_name = name.partition(":")
        module = importlib.import_module(module_name)
        return attrgetter(qualified_name)(module) if qualified_name else module
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
