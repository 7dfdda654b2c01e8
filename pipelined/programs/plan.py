"""The plan of a whole job: W pipeline groups of one layout each, and the ranks of each stage. No torch, no network.

Ranks are numbered group by group, so that neighbouring stages of a pipeline are on the same node where possible. The
gradient all-reduce of a stage spans the groups.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from pipelined.errors import UsageError
from pipelined.programs.staleness import steps_to_fill
from pipelined.schedules import Shape, StageMap, find


class PlanError(UsageError):
    """A job that cannot be laid out; the message ends in the remedy."""


@dataclass(frozen=True)
class Plan:
    """One resolved arrangement of a job.

    Args:
        schedule: a name that `schedules.find` accepts.
        depth: the stages of a pipeline, D.
        width: pipeline groups that run in parallel on their own microbatches, W.
        microbatch: sequences in a microbatch, B.
        microbatches: microbatches of a group per step, N.
        pipes: model replicas inside a group (2f for Chimera); 0 lets the schedule choose.
        chunks: the stages that a worker holds in one pipe.
        scale: how a schedule takes more than D microbatches.
    """

    schedule: str
    depth: int
    width: int
    microbatch: int
    microbatches: int
    pipes: int = 0
    chunks: int = 1
    scale: str = "direct"

    def __post_init__(self) -> None:
        for name in ("depth", "width", "microbatch", "microbatches", "chunks"):
            if getattr(self, name) < 1:
                raise PlanError(f"--{name} must be at least 1 (it is {getattr(self, name)})")
        if self.microbatch % self.layout.parts:
            fact = f"{self.scale} cuts each microbatch in {self.layout.parts} (--microbatch {self.microbatch})"
            raise PlanError(f"{fact}; make it a multiple of {self.layout.parts}")
        every = self.layout.updates.every
        if self.total_microbatches // self.width % every:
            fact = f"{self.schedule} updates by {every} microbatches at a time (microbatches: "
            raise PlanError(f"{fact}{self.microbatches}); use a multiple of {every}")

    @cached_property
    def layout(self) -> StageMap:
        """The layout of one group."""
        return find(self.schedule).layout(self.shape)

    @property
    def shape(self) -> Shape:
        return Shape(self.depth, self.microbatches, self.pipes, self.chunks, self.scale)

    @property
    def world_size(self) -> int:
        return self.width * self.layout.workers

    @property
    def rows(self) -> int:
        """Sequences in one microbatch of the schedule: B, or B/2 if backwards are halved."""
        return self.microbatch // self.layout.parts

    @property
    def total_microbatches(self) -> int:
        """The schedule's microbatches of one step over all groups: N·W, or twice that if backwards are halved."""
        return sum(map(len, self.layout.microbatches)) * self.width

    @property
    def microbatches_an_update(self) -> int:
        """The number of gradients, over all groups, in one update: those of a step, or fewer without a flush."""
        return self.layout.updates.every * self.width

    @property
    def updates_a_step(self) -> int:
        """Updates of each parameter in a step: 1, or without a flush the number that the schedule sets."""
        return self.total_microbatches // self.microbatches_an_update

    @property
    def flushes(self) -> bool:
        """Whether the pipe is drained at the end of every step; see `schedules.Updates`."""
        return self.layout.updates.flushes

    @property
    def proof_shape(self) -> Shape:
        """The shape that is checked before training: one step, or without a flush enough steps to fill the pipe."""
        return self.shape if self.flushes else replace(self.shape, steps=1 + steps_to_fill(self.shape))

    @property
    def batch(self) -> int:
        """Sequences of one step over all groups, B·N·W."""
        return self.rows * self.total_microbatches

    def rank(self, group: int, worker: int) -> int:
        return group * self.layout.workers + worker

    def position(self, rank: int) -> tuple[int, int]:
        """(group, worker) of a rank."""
        return divmod(rank, self.layout.workers)

    def stages_of(self, rank: int) -> list[int]:
        """The distinct stages that a rank holds, ascending."""
        return self.layout.stages_of(self.position(rank)[1])

    def holder(self, group: int, pipe: int, stage: int) -> int:
        """The rank that holds a stage of a pipe."""
        return self.rank(group, self.layout.placement[pipe, stage])

    def holders(self, *stages: int) -> tuple[int, ...]:
        """The ranks that hold a replica of one of these stages, ascending; their gradients are summed."""
        workers = {worker for (_, stage), worker in self.layout.placement.items() if stage in stages}
        return tuple(sorted(self.rank(g, w) for g in range(self.width) for w in workers))

    def global_microbatch(self, group: int, microbatch: int) -> int:
        """The number of a group's microbatch among all microbatches of the step."""
        return group * (self.total_microbatches // self.width) + microbatch
