"""One rank of a simulated job without a flush: its stage is updated while the schedule runs.

It is updated when training updates it: both follow `pipelined.programs.updates.update_rule`. The step totals are
exchanged several steps later, so no rank waits for them.
"""

import asyncio
from collections.abc import Iterable

from pipelined.programs.prepare import Prepared
from pipelined.programs.pricing.virtual_worker import GroupMessages, VirtualWorker
from pipelined.programs.updates.bucket_names import Stages
from pipelined.programs.updates.update_rule import Apply, Collect, UpdateRule
from pipelined.simulation.rank import GroupPlatform, Rank
from transports import Nursery


class OverlappingRank(Rank):
    """One rank in a segment of steps that overlap.

    Args:
        messages: the messages of its group.
        prepared: its schedule.
    """

    def __init__(self, platform: GroupPlatform, rank: int, messages: GroupMessages, prepared: Prepared, tasks: Nursery):
        super().__init__(platform, rank, tasks)
        (stage,) = self.stages
        element_s = self.job.workload.stages[stage].update / max(1, sum(bucket.elements for bucket in self.mine))
        self._seconds = {bucket.stages: element_s * bucket.elements for bucket in self.mine}
        self._sums: dict[tuple[Stages, int], asyncio.Task[None]] = {}
        self._schedule = prepared.schedule
        self.rule = UpdateRule(self.hardware.stage_map, self._seconds)
        self.worker = _Worker(self, platform, messages)

    async def run(self) -> None:
        await self._schedule.schedule(self.worker)
        await self.carry_out(self.rule.drain())

    async def carry_out(self, decisions: Iterable[Collect | Apply]) -> None:
        """Carry out decisions of the rule, each in the seconds that it costs."""
        for decision in decisions:
            update = decision.bucket, decision.update
            if isinstance(decision, Collect):
                self._sums[update] = self.start(self.sum(update))
            else:
                await self._sums.pop(update)
                await self.hardware.cores.run(self._seconds[decision.bucket])


class _Worker(VirtualWorker):
    """A worker that reports to the update rule of its rank."""

    def __init__(self, rank: OverlappingRank, platform: GroupPlatform, messages: GroupMessages):
        super().__init__(rank.index, rank.hardware.stage_map, rank.hardware.demands, messages, platform)
        self._rank = rank

    async def _execute(self, op: str, pipe: int, stage: int, microbatch: int) -> None:
        if op == "F":
            await self._rank.carry_out(self._rank.rule.before_forward(microbatch).applies)
        await super()._execute(op, pipe, stage, microbatch)
        if op in "BW":
            await self._rank.carry_out(self._rank.rule.after_backward())
