"""One step with a flush: run the schedule, finish the gradient sums, and update after all ranks have agreed.

The accumulation may run the schedule again.
"""

import asyncio
from collections import Counter
from functools import partial

import numpy as np

from pipelined.aio.nursery import Nursery
from pipelined.programs.gradient_sync import GradientSync
from pipelined.programs.prepare import Prepared
from pipelined.programs.update_rule import UpdateRule
from pipelined.training.optimizer.rank_optimizer import RankOptimizer
from pipelined.training.parameters import LocalParameters
from pipelined.training.rank_context import RankContext
from pipelined.training.replay import Order, follow_order
from pipelined.training.segments.segment import Segment, StepAccount
from pipelined.training.sums.accumulation import Accumulation
from pipelined.training.sums.bucket import Bucket
from pipelined.training.sums.gradient_sums import GradientSums
from pipelined.training.worker import TrainWorker


class FlushedStep(Segment):
    """The segment of a schedule that drains the pipe at the end of every step.

    Args:
        context: the context of the rank.
        local: the parameters of the rank; they are updated together.
        sums: sums a bucket's gradient over its holders.
        optimizer: of all these parameters.
        accumulation: of the rank's gradients.
        step: the step.
        prepared: the rank's instructions and gradient sums.
        order: the instructions to follow instead of the schedule; empty: none.
        loss_scale: of this step.
    """

    def __init__(
        self,
        context: RankContext,
        local: LocalParameters,
        sums: GradientSums,
        optimizer: RankOptimizer,
        *,
        accumulation: Accumulation,
        step: int,
        prepared: Prepared,
        order: Order,
        loss_scale: float,
    ):
        self._accumulation, self._passes, self._loss_scale = accumulation, 0, loss_scale
        self._context, self._local, self._optimizer, self._step = context, local, optimizer, step
        self._sums, self._prepared, self._order, self._drained = sums, prepared, order, asyncio.Event()
        self._buckets = {bucket.stages: bucket for bucket in local.buckets}
        self._rule = UpdateRule(context.plan.stage_map, self._buckets)

    async def run(self) -> None:
        with np.errstate(over="ignore", invalid="ignore"):  # the step's norm tells all ranks of such gradients
            await self._accumulation.run(self._pass)
        self._drained.set()

    async def _pass(self) -> None:
        """Run the schedule once, and finish the gradient sums; a trace has the last pass of a step alone."""
        if self._passes:
            self._context.tracer.abandon(self._step)
        self._passes += 1
        prepared, context, order = self._prepared, self._context, self._order
        sync = GradientSync(context.actor, self._local.buckets, self._sum, prepared.instructions)
        async with Nursery() as instructions:
            self._worker = worker = TrainWorker(
                context,
                self._step,
                sync,
                order or prepared.instructions,
                instructions=instructions if context.plan.tensor == 1 else None,  # else tensors move inside of one
                loss_scale=self._loss_scale,
            )
            await (follow_order(worker, order) if order else prepared.schedule.schedule(worker))
        await sync.finish()
        await worker.sent()  # a codec's threads may still be at work, and the step counts its bytes

    async def _sum(self, bucket: Bucket) -> None:
        with self._context.executor.doing("a gradient sum"):
            await self._sums.sum(bucket)
        await self._optimizer.take(bucket)

    async def admits(self, number: int) -> bool:
        return number == 0

    async def complete(self, number: int) -> StepAccount:
        await self._drained.wait()
        squares, _, _ = await self._context.executor.run("norm", partial(self._local.squares, self._accumulation))
        if self._context.member:  # all members of a team have the losses, and the first reports them
            return StepAccount(squares=Counter(squares))
        return StepAccount(self._worker.losses, self._worker.count, Counter(squares))

    async def update(self, rate: float | None, gradient_scale: float) -> None:
        updated = [self._buckets[apply.bucket] for apply in self._rule.drain()]
        start, end = await self._optimizer.update(updated, rate, gradient_scale)
        await self._sums.publish(updated, self._context.executor)
        await self._context.executor.run("step", self._local.clear_gradients)
        self._context.tracer.record("step", "step", start, end, (self._step, -1, -1, -1))

    def record_agreed(self, number: int, stop: bool) -> None:
        """Nothing: the next step is a segment of its own."""
