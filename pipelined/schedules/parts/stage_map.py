"""The shape that the caller requests from a schedule, and the stage map that the schedule returns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral

from pipelined.errors import UsageError, whole


class ScheduleError(UsageError):
    """A shape that the schedule cannot take, or a program that is wrong; the message ends in the remedy."""


MAX_COUNT = 1 << 16
"""The largest number of stages, groups, microbatches or pipes; no job needs more."""
MAX_CELLS = 1 << 20
"""The largest product of stages and groups, microbatches or pipes; stage map and check take time and memory in
proportion to it."""


@dataclass(frozen=True)
class Shape:
    """The sizes requested from a schedule.

    Args:
        depth: the number of stages, D.
        microbatches: per pipeline group and step, N.
        knobs: values of `knobs.Knob`s by name; a knob that is missing has its default.
        steps: steps in a segment; more than 1 only for asynchronous schedules, which do not flush between steps.
    Raises:
        UsageError: a size is no whole number. ScheduleError: it is too large for any job.
    """

    depth: int
    microbatches: int
    knobs: Mapping[str, int | str] = field(default_factory=dict, hash=False)
    steps: int = 1

    def __post_init__(self) -> None:
        for name in ("depth", "microbatches", "steps"):
            object.__setattr__(self, name, whole(name, getattr(self, name)))
        require_sizes({"depth": self.depth, "microbatches": self.microbatches})


def require_count(name: str, value: int) -> None:
    """Raises ScheduleError: a number of stages, ranks, microbatches or pipes is larger than any job needs."""
    if value > MAX_COUNT:
        raise ScheduleError(f"{name} is {value} and can be {MAX_COUNT} at most; use a smaller number")


def require_sizes(sizes: Mapping[str, object]) -> None:
    """Refuse sizes with which the stage map or the check would take hours, or all memory.

    Args:
        sizes: `depth` and other sizes and knobs, by name; only whole numbers are checked.
    Raises:
        ScheduleError: a number is too large; the message names it and the limit.
    """
    counts = {name: value for name, value in sizes.items() if isinstance(value, int)}
    for name, value in counts.items():
        require_count(name, value)
    for name, value in counts.items():
        cells = counts["depth"] * value
        if name != "depth" and cells > MAX_CELLS:
            fact = f"depth times {name} is {cells} ({sizes['depth']} x {value}) and can be {MAX_CELLS} at most"
            raise ScheduleError(f"{fact}; use fewer stages or {name}")


def _require_whole(fact: str, setting: str, value: object, least: int) -> None:
    """Raises ScheduleError: a number of a stage map is not whole, or below its least value."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ScheduleError(f"{fact} ({setting}: {value!r:.40}); give a whole number from {least} up")


@dataclass(frozen=True)
class Updates:
    """When weights are updated, and which version of them a forward uses.

    Versions of a stage's weights are counted from 0 at the start of a segment. Update u makes version u + 1 from the
    gradients of microbatches u·every … u·every + every - 1.

    With a flush (`FLUSH`) all microbatches of a step are in one update. All stages make it together, after all ranks
    have agreed on the gradient's norm. Without a flush each stage makes an update as soon as it has the last of its
    gradients, while other microbatches are in flight; `StageMap.alive_limit` limits how many.

    Args:
        every: the number of microbatches of a group in one update; `StageMap` sets it for a flush.
        delay: a forward uses version u - delay, where u is the update that its gradient is part of (at the start of
            training: the initial weights). None: a forward uses the newest version of its stage, so the order of
            instructions determines the delay.
        flushes: whether the pipe is drained before an update, so that a segment is one step.
    Raises:
        ScheduleError: without a flush `every` is no whole number from 1 up; or `delay` is neither None nor a whole
            number from 0 up.
    """

    every: int
    delay: int | None = None
    flushes: bool = False

    def __post_init__(self) -> None:
        if not self.flushes:
            _require_whole("an update has at least one microbatch", "every", self.every, 1)
        if self.delay is not None:
            _require_whole("a delay is a number of updates", "delay", self.delay, 0)


FLUSH = Updates(every=0, delay=0, flushes=True)
"""One update after all microbatches of a step, by gradients of the weights that it changes."""


@dataclass(frozen=True)
class StageMap:
    """The map of one shape: which worker holds which stage of which pipe, and which microbatches enter each pipe.

    Args:
        depth: the number of stages, D.
        workers: the number of ranks in one pipeline group.
        placement: (pipe, stage) to the worker that holds it, as its number.
        microbatches: for each pipe its microbatches in the order in which they enter; each of 0 … N-1 is in one pipe.
        pieces: the number of pieces into which each microbatch of the shape is cut; the pieces are the microbatches
            here (2 where backwards are halved). A piece has 1/pieces of the sequences and of the cost.
        updates: when weights are updated. Without a flush the microbatches here are those of a whole segment.
        alive: without a flush, the most microbatches that each stage may have alive; empty: D - s on stage s.
    Raises:
        ScheduleError: `alive` is not empty, and has no whole number from 1 up for each stage.
    """

    depth: int
    workers: int
    placement: dict[tuple[int, int], int]
    microbatches: tuple[tuple[int, ...], ...]
    pieces: int = 1
    updates: Updates = FLUSH
    alive: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.alive, Sequence) or len(self.alive) not in (0, self.depth):
            fact = f"a stage map limits what each stage has alive (alive: {self.alive!r:.40}, depth: {self.depth})"
            raise ScheduleError(f"{fact}; give one number for each stage, or leave `alive` out")
        for limit in self.alive:
            _require_whole("a stage has at least one microbatch alive", "alive", limit, 1)
        if self.updates.flushes:
            object.__setattr__(self, "updates", replace(self.updates, every=sum(map(len, self.microbatches))))

    @property
    def pipes(self) -> int:
        return len(self.microbatches)

    @property
    def has_several_stages_of_a_pipe(self) -> bool:
        """Whether a worker holds several stages of one pipe."""
        return len(self.placement) > self.pipes * self.workers

    @property
    def unit_of_activations(self) -> str:
        """What a worker counts as alive: a microbatch once in each of its stages."""
        return "stage inputs" if self.has_several_stages_of_a_pipe else "microbatches"

    def alive_limit(self, stage: int) -> int:
        """The most microbatches alive on a stage without a flush: forward begun, backward not ended."""
        return self.alive[stage] if self.alive else self.depth - stage

    def held_by(self, worker: int) -> list[tuple[int, int]]:
        """The (pipe, stage) pairs that a worker holds, sorted by pipe, then stage."""
        return list(self._places_by_worker.get(worker, ()))

    def stages_of(self, worker: int) -> list[int]:
        """The distinct stages that a worker holds, ascending."""
        return sorted({stage for _, stage in self.held_by(worker)})

    def holders_of(self, stage: int) -> frozenset[int]:
        """The workers that hold a stage."""
        return self._workers_by_stage.get(stage, frozenset())

    @cached_property
    def _workers_by_stage(self) -> dict[int, frozenset[int]]:
        workers_of: dict[int, set[int]] = {}
        for (_, stage), worker in self.placement.items():
            workers_of.setdefault(stage, set()).add(worker)
        return {stage: frozenset(workers) for stage, workers in workers_of.items()}

    @cached_property
    def _places_by_worker(self) -> dict[int, list[tuple[int, int]]]:
        """The (pipe, stage) pairs of each worker, sorted."""
        places_of: dict[int, list[tuple[int, int]]] = {}
        for place in sorted(self.placement):
            places_of.setdefault(self.placement[place], []).append(place)
        return places_of
