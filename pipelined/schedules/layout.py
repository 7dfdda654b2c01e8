"""The shape that the caller requests from a schedule, and the stage map that the schedule returns."""

from dataclasses import dataclass

from pipelined.errors import UsageError

SCALES = ("direct", "forward-doubling", "backward-halving")


class ScheduleError(UsageError):
    """A shape that the schedule cannot take, or a program that is wrong; the message ends in the remedy."""


@dataclass(frozen=True)
class Shape:
    """The sizes requested from a schedule.

    Args:
        depth: the number of stages, D.
        microbatches: per pipeline group and step, N.
        pipes: model replicas inside a group (2f for Chimera); 0 lets the schedule choose.
        chunks: the stages that a worker holds in one pipe, V.
        scale: how to schedule more than D microbatches, one of `SCALES`.
        steps: steps in a segment; more than 1 only for asynchronous schedules, which do not flush between steps.
    """

    depth: int
    microbatches: int
    pipes: int = 0
    chunks: int = 1
    scale: str = "direct"
    steps: int = 1


@dataclass(frozen=True)
class Updates:
    """How an asynchronous schedule updates weights: stage by stage, while microbatches are in flight.

    Versions of a stage's weights are counted from 0 at the start of a segment. Update u makes version u + 1 from the
    gradients of microbatches u·every … u·every + every - 1, as soon as the stage has the last of them. Stage s may have
    at most D - s microbatches alive.

    Args:
        every: the number of microbatches of a group in one update.
        delay: a forward uses the weights this many versions before the version that its gradient is subtracted from
            (at the start of training: the initial weights). None: a forward uses the newest version of its stage, so
            the order of instructions determines the delay.
    """

    every: int
    delay: int | None = None


@dataclass(frozen=True)
class StageMap:
    """The layout for one shape: which worker holds which stage of which pipe, and which microbatches enter each pipe.

    Args:
        depth: the number of stages, D.
        workers: the number of ranks in one pipeline group.
        placement: (pipe, stage) to the workers that hold it (one, until tensors are sharded).
        microbatches: for each pipe its microbatches in the order in which they enter; each of 0 … N-1 is in one pipe.
        parts: the number of pieces into which each microbatch of the shape is cut; the pieces are the microbatches
            here (2 where backwards are halved). A piece has 1/parts of the sequences and of the cost.
        updates: the update rule of an asynchronous schedule; its microbatches are those of a whole segment. None: all
            weights are updated together, after the step.
    """

    depth: int
    workers: int
    placement: dict[tuple[int, int], tuple[int, ...]]
    microbatches: tuple[tuple[int, ...], ...]
    parts: int = 1
    updates: Updates | None = None

    @property
    def pipes(self) -> int:
        return len(self.microbatches)

    def held_by(self, worker: int) -> list[tuple[int, int]]:
        """The (pipe, stage) pairs that a worker holds, sorted by pipe, then stage."""
        return sorted(place for place, workers in self.placement.items() if worker in workers)

    def stages_of(self, worker: int) -> list[int]:
        """The distinct stages that a worker holds, ascending."""
        return sorted({stage for _, stage in self.held_by(worker)})


Layout = StageMap
"""The earlier name of `StageMap`; users' own schedules may import it."""
