"""Gradient sums with torch: the all-reduce of each bucket over the ranks that hold it.

`pipelined.programs.updates.sum_starts` decides when each sum starts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collectives import Group, ProblemSize, all_reduce, allocate
from collectives.algorithms import ALL_REDUCE, AUTO, ClosedForms, algorithm_for, may_share_memory, names_in
from pipelined.actors.device.executor import Executor
from pipelined.errors import UsageError
from pipelined.traces.tracer import NullTracer, Tracer
from pipelined.training.sums.bucket import Bucket
from pipelined.training.teams.move_timer import MoveTimer
from pipelined.training.teams.pieces import TeamSums


@dataclass(eq=False)
class GradientSums:
    """Sums this rank's buckets.

    Args:
        groups: the holders of each bucket, by the bucket's stages.
        algorithm: an all-reduce, by name or by size (see `collectives.all_reduce`).
        tracer: records each sum.
        team: the sums inside this rank's team, which come first; None: the rank is a team of one.
    """

    groups: Mapping[Any, Group]
    algorithm: str
    tracer: Tracer | NullTracer = field(default_factory=NullTracer)
    team: TeamSums | None = None

    async def sum(self, bucket: Bucket) -> None:
        """Sum a bucket's gradient over its holders, in place; a gradient on a GPU is copied to the host and back.

        In a team the pieces that several members hold are summed over these members first.
        """
        with self.tracer.span("all_reduce", f"stage {'+'.join(map(str, bucket.stages))}"):
            if self.team is not None:
                await self.team.sum(bucket.stages, bucket.parameters)
            if len(bucket.holders) == 1:
                return
            host = bucket.summed.cpu()
            await all_reduce(self.groups[bucket.stages], host, "sum", self.algorithm)
            if host is not bucket.summed:
                bucket.summed.copy_(host)

    @property
    def move_timers(self) -> list[MoveTimer]:
        """The timers of the sums inside this rank's team."""
        return [] if self.team is None else list(self.team.timers.values())

    async def publish(self, buckets: Sequence[Bucket], executor: Executor) -> None:
        """Give the other holders what this rank has updated: nothing, as every holder has updated all of a bucket."""

    async def planned_bytes(self, buckets: Iterable[Bucket], world: Group, agreed_numbers: int) -> int:
        """Payload bytes that this rank sends to sum each bucket once; 0 for a sum in shared memory or by the transport.

        All ranks call this in one order, while nothing else runs on the groups.

        Args:
            world: the group of all ranks.
            agreed_numbers: how many numbers of 8 bytes they agree on as well.
        """
        bytes_by_bucket = [await self._bytes_to_sum(bucket) for bucket in buckets]
        return sum(bytes_by_bucket) + await _bytes_sent(world, 8 * agreed_numbers, 8, AUTO)

    async def _bytes_to_sum(self, bucket: Bucket) -> int:
        """Bytes that this rank sends to sum a bucket once, in its team too."""
        group = self.groups[bucket.stages]
        summed = bucket.summed
        team_bytes = 0 if self.team is None else await self.team.planned_bytes(bucket.stages, bucket.parameters)
        return team_bytes + await _bytes_sent(group, summed.nbytes, summed.element_size(), self.algorithm)

    async def allocate_shared(self, buckets: Iterable[Bucket]) -> None:
        """Move gradients into memory that all holders map, if they are summed through shared memory.

        All ranks call this before the first backward, while nothing else runs on the groups.
        """
        if not may_share_memory(self.algorithm):
            return
        for bucket in sorted(buckets, key=lambda bucket: self.groups[bucket.stages].channel):
            group = self.groups[bucket.stages]
            summed = bucket.summed
            if group.size > 1 and summed.device.type == "cpu":
                bucket.rebase(await allocate(group, summed.nbytes, "uint8"))

    async def open_resources(self) -> None:
        """Open the resources of the transport that the algorithm needs, in the same order on all ranks; all call this.

        Raises:
            UsageError: the transport lacks them for these ranks. All groups are checked first, so no rank is left
                waiting.
        """
        unready = []
        for group in sorted(self.groups.values(), key=lambda group: group.channel):
            if group.size > 1 and not await self._is_ready(group):
                unready.append(group.ranks)
        if unready:
            fact = f"this transport has no {self.algorithm} all-reduce for these ranks (ranks: {unready[0]})"
            raise UsageError(f"{fact}; choose another `all_reduce=`, or leave it to auto")

    async def _is_ready(self, group: Group) -> bool:
        names = names_in(self.algorithm)
        lacks_native = "native" in names and await group.open_native() is None
        lacks_memory = "shared" in names and await group.shared.open() is None
        return not lacks_native and not lacks_memory


async def _bytes_sent(group: Group, nbytes: int, itemsize: int, algorithm: str) -> int:
    """Bytes that this rank sends in one all-reduce; an algorithm without closed forms sends none by itself."""
    if group.size == 1 or not nbytes:
        return 0
    name = algorithm_for(algorithm, nbytes) if algorithm != AUTO else AUTO
    forms = ALL_REDUCE.find(await ALL_REDUCE.choose(group, nbytes) if name == AUTO else name)
    if not isinstance(forms, ClosedForms):
        return 0
    return sum(forms.bytes_to(ProblemSize(group.nodes, nbytes, itemsize), group.rank).values())
