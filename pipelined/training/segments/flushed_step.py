"""One step with a flush: run the schedule, finish the gradient sums, and update after all ranks have agreed.

The accumulation may run the schedule again.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass
from functools import partial

import numpy as np

from pipelined.programs.prepare import Prepared
from pipelined.programs.updates.step_totals import StepAccount
from pipelined.programs.updates.sum_starts import SumStarts
from pipelined.programs.updates.update_rule import UpdateRule
from pipelined.traces.tracer import NOWHERE
from pipelined.training.job.rank_context import RankContext
from pipelined.training.optimizer.rank_optimizer import RankOptimizer
from pipelined.training.segments.replay import Order, follow_order
from pipelined.training.segments.segment import Segment
from pipelined.training.segments.worker import TrainWorker
from pipelined.training.stages.parameters import LocalParameters
from pipelined.training.sums.accumulation import Accumulation
from pipelined.training.sums.bucket import Bucket
from pipelined.training.sums.gradient_sums import GradientSums
from transports import Nursery


@dataclass(eq=False, kw_only=True)
class FlushedStep(Segment):
    """The segment of a schedule that drains the pipe at the end of every step.

    Args:
        context: the context of the rank.
        local: the parameters of the rank; they are updated together.
        sums: sums a bucket's gradient over its holders.
        rank_optimizer: of all these parameters.
        accumulation: of the rank's gradients.
        step: the step.
        prepared: the rank's instructions and gradient sums.
        order: the instructions to follow instead of the schedule; empty: none.
        loss_scale: of this step.
    """

    context: RankContext
    local: LocalParameters
    sums: GradientSums
    rank_optimizer: RankOptimizer
    accumulation: Accumulation
    step: int
    prepared: Prepared
    order: Order
    loss_scale: float

    def __post_init__(self) -> None:
        self._buckets = {bucket.stages: bucket for bucket in self.local.buckets}
        self._rule = UpdateRule(self.context.plan.stage_map, self._buckets)
        self._passes = 0
        self._drained = asyncio.Event()

    async def run(self) -> None:
        with np.errstate(over="ignore", invalid="ignore"):  # the step's norm tells all ranks of such gradients
            await self.accumulation.run(self._pass)
        self._drained.set()

    async def _pass(self) -> None:
        """Run the schedule once, and finish the gradient sums; a trace has the last pass of a step alone."""
        if self._passes:
            self.context.tracer.abandon(self.step)
        self._passes += 1
        prepared, context, order = self.prepared, self.context, self.order
        sum_starts = SumStarts(context.actor, self.local.buckets, self._sum, prepared.instructions)
        async with Nursery() as instructions:
            self._worker = worker = TrainWorker(
                context,
                self.step,
                sum_starts,
                order or prepared.instructions,
                instructions=instructions if context.plan.tensor == 1 else None,  # else tensors move inside of one
                loss_scale=self.loss_scale,
            )
            await (follow_order(worker, order) if order else prepared.schedule.schedule(worker))
        await sum_starts.finish()
        await worker.sent()  # a codec's threads may still be at work, and the step counts its bytes

    async def _sum(self, bucket: Bucket) -> None:
        with self.context.executor.doing("a gradient sum"):
            await self.sums.sum(bucket)
        await self.rank_optimizer.take_gradient(bucket)

    async def admits(self, index: int) -> bool:
        return index == 0

    async def wait_for_sums(self, index: int) -> StepAccount:
        await self._drained.wait()
        squares, _, _ = await self.context.executor.run("norm", partial(self.local.squares, self.accumulation))
        if self.context.member:  # all members of a team have the losses, and the first reports them
            return StepAccount(squares=Counter(squares))
        return StepAccount(self._worker.losses, self._worker.count, Counter(squares))

    async def update(self, rate: float | None, gradient_scale: float) -> None:
        updated = [self._buckets[apply.bucket] for apply in self._rule.drain()]
        start, end = await self.rank_optimizer.update(updated, rate, gradient_scale)
        await self.sums.publish(updated, self.context.executor)
        self.context.tracer.record("step", "step", start, end, (self.step, NOWHERE, NOWHERE, NOWHERE))

    def record_agreed(self, index: int, stop: bool) -> None:
        """Nothing: the next step is a segment of its own."""
