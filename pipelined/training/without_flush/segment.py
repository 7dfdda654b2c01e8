"""A segment without a flush: its steps overlap, and each stage is updated while microbatches are under way.

An update cannot wait for a whole step. The numbers on which all ranks agree, such as the global gradient norm, are
known only some steps later, so gradients cannot be clipped by it.
"""

from collections.abc import Mapping
from dataclasses import replace

from pipelined.programs.prepare import Prepared
from pipelined.programs.staleness import steps_to_fill
from pipelined.training.gradient_sums import GradientSums
from pipelined.training.optimizer import OptimizerConfig
from pipelined.training.replay import Order, follow_steps
from pipelined.training.segment import Segment, StepAccount
from pipelined.training.without_flush.admission import Admission
from pipelined.training.without_flush.stage_updates import StageUpdates
from pipelined.training.without_flush.versioned_stage import VersionedStage
from pipelined.training.without_flush.worker import AsynchronousWorker
from pipelined.training.worker import RankContext


class OverlappingSteps(Segment):
    """The segment of a schedule without a flush.

    Args:
        context: the context of the rank.
        held: the one stage of the rank, with the versions of its weights.
        sums: sums a bucket's gradient over its holders.
        optimizer_config: gives the learning rate of each step.
        steps: the steps, the same on all ranks.
        prepared: the rank's schedule.
        orders: the instructions of all steps, under the first one, to follow instead of the schedule; empty: none.
    """

    def __init__(
        self,
        context: RankContext,
        held: VersionedStage,
        sums: GradientSums,
        optimizer_config: OptimizerConfig,
        *,
        steps: range,
        prepared: Prepared,
        orders: Mapping[int, Order],
    ):
        shape, each = replace(context.plan.shape, steps=len(steps)), context.plan.microbatches
        layout = prepared.schedule.layout(shape)
        self._admission = Admission(len(steps), steps_to_fill(shape))
        self._schedule, self._steps, self._orders, self._each = prepared.schedule, steps, orders, each

        def rate(update: int) -> float:
            return optimizer_config.rate(steps.start + update * layout.updates.every // each)

        updates = StageUpdates(context=context, held=held, layout=layout, rate=rate, sums=sums)
        self._worker = AsynchronousWorker(
            context, layout, start=steps.start, held=held, admission=self._admission, updates=updates
        )

    async def run(self) -> None:
        if self._orders:
            await follow_steps(self._worker, self._orders, self._steps, self._each)
        else:
            await self._schedule.schedule(self._worker)
        await self._worker.drain()

    async def enters(self, number: int) -> bool:
        return await self._admission.enters(number)

    async def complete(self, number: int) -> StepAccount:
        return await self._worker.close(number)

    async def update(self, rate: float, shrink: float) -> None:
        """Nothing: the stage was updated while the schedule ran."""

    def settle(self, number: int, stop: bool) -> None:
        self._admission.settle(number, stop)
        self._worker.open()
