"""The shape that a schedule is asked for and the stage map that it answers."""

from dataclasses import dataclass

from pipelined.errors import UsageError

SCALES = ("direct", "forward-doubling", "backward-halving")


class ScheduleError(UsageError):
    """A shape the schedule cannot take, or a program that is wrong; the message says what would do."""


@dataclass(frozen=True)
class Shape:
    """What is asked of a schedule.

    Args:
        depth: stages, D.
        microbatches: per pipeline group and step, N.
        pipes: model replicas inside a group (2f for Chimera); 0 lets the schedule choose.
        chunks: stages a worker holds in one pipe, V.
        scale: how to go beyond D microbatches, one of `SCALES`.
        steps: of a stretch without a flush; only asynchronous schedules take more than one at a time.
    """

    depth: int
    microbatches: int
    pipes: int = 0
    chunks: int = 1
    scale: str = "direct"
    steps: int = 1


@dataclass(frozen=True)
class Updates:
    """How an asynchronous schedule updates weights: stage by stage, while microbatches are under way.

    Versions of a stage's weights are counted from 0 at the start of a stretch; update u makes version u + 1 out of the
    gradients of microbatches u·every … u·every + every - 1, as soon as the stage has the last of them. Stage s may have
    D - s microbatches alive, no more.

    Args:
        every: microbatches of a group whose gradients make one update.
        delay: a forward takes the weights this many versions before the one its gradient is subtracted from (at first:
            those of the start); None: the newest its stage has, so that the order of instructions is the delay.
    """

    every: int
    delay: int | None = None


@dataclass(frozen=True)
class StageMap:
    """The layout that answers a shape: which worker holds which stage of which pipe, and which microbatches enter it.

    Args:
        depth: stages, D.
        workers: ranks of one pipeline group.
        placement: (pipe, stage) to the workers that hold it (one, until tensors are sharded).
        microbatches: for each pipe its microbatches in the order they enter; each of 0 … N-1 once over all pipes.
        parts: pieces into which each microbatch of the shape is cut; the pieces are the microbatches here (2 where
            backwards are halved). A piece has 1/parts of the sequences and of the cost.
        updates: of an asynchronous schedule; its microbatches are those of a whole span of steps. None: all weights
            are updated together, behind the step.
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
        """The (pipe, stage) pairs a worker holds, by pipe, then stage."""
        return sorted(place for place, workers in self.placement.items() if worker in workers)

    def stages_of(self, worker: int) -> list[int]:
        """The distinct stages a worker holds, ascending."""
        return sorted({stage for _, stage in self.held_by(worker)})


Layout = StageMap
"""The earlier name, which users' own schedules may import."""
