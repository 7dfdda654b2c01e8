"""The agreement of all ranks on the numbers of each step: loss, gradient norm, a stop request; and the update by them.

One small vector is summed over all ranks. From the same bits every rank derives the same factor and the same decision.
What the update itself sends comes after that sum, and is among the bytes of the next step.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from collectives import Group, all_reduce
from pipelined.programs.updates.step_totals import STEP_TOTALS, StepAccount, StepTotals
from pipelined.training.job.optimizer_settings import OptimizerSettings
from pipelined.training.job.rank_context import RankContext
from pipelined.training.optimizer import clip_factor
from pipelined.training.segments.loss_scale import LossScale
from pipelined.training.segments.segment import Segment
from pipelined.training.segments.step_report import StepReport
from pipelined.training.stages.running_statistics import StatisticsExchange


class StepMeter:
    """Measures the steps of a segment on one rank, from its making on.

    The measures of a step end at different moments: computing and bytes before the sum that carries them, the seconds
    after the update. So each has a beginning of its own.

    Args:
        sent: bytes sent before, which belong to the first step.
    """

    def __init__(self, context: RankContext, sent: int = 0):
        self._context = context
        self._began_s = context.executor.clock.now()
        self._busy_before_s = context.executor.busy
        self._sent_before = self._sent_so_far() - sent

    def seconds(self) -> float:
        """Seconds since the step began."""
        return self._context.executor.clock.now() - self._began_s

    def busy_s(self) -> float:
        """Seconds that the executor has computed since the last call."""
        before, self._busy_before_s = self._busy_before_s, self._context.executor.busy
        return self._busy_before_s - before

    def sent_bytes(self) -> int:
        """Payload bytes that this rank has sent to others since the last `leave_out_sent`."""
        return self._sent_so_far() - self._sent_before

    def leave_out_sent(self) -> None:
        """Count from now on: what was sent last was the step's totals, which are no part of a step."""
        self._sent_before = self._sent_so_far()

    def begin_step(self) -> None:
        """Begin the seconds of the next step."""
        self._began_s = self._context.executor.clock.now()

    def _sent_so_far(self) -> int:
        """Payload bytes sent to others since the rank began, without those of a save beside the steps."""
        actor = self._context.actor
        traffic = actor.transport.traffic
        return traffic.bytes_sent - traffic.bytes_to.get(actor.rank, 0) - traffic.object_bytes_sent


@dataclass(eq=False, kw_only=True)
class StepAgreement:
    """Completes the steps of a segment, in order.

    Args:
        world: all ranks of the job.
        totals: the layout of the vector.
        statistics: the running statistics, merged after each step.
        optimizer: of all parameters of the rank.
        settings: its learning rates, and the largest norm.
        loss_scale: follows the steps; each begins with the scale that the step before left.
    """

    context: RankContext
    world: Group
    totals: StepTotals
    statistics: StatisticsExchange
    optimizer: torch.optim.Optimizer
    settings: OptimizerSettings
    loss_scale: LossScale
    _sent_by_update: int = field(default=0, init=False)

    def new_meter(self) -> StepMeter:
        """The meter of a segment that begins now; its first step has the bytes of the last update, too."""
        return StepMeter(self.context, self._sent_by_update)

    async def complete_steps(
        self,
        segment: Segment,
        steps: range,
        meter: StepMeter,
        *,
        stopping: Callable[[], bool],
        on_step: Callable[[StepReport], None],
    ) -> StepReport:
        """Agree on every completed step, in order, update, and admit further steps.

        Args:
            meter: began with the segment.
        Returns: the report of the last step, or of the first step with numbers that are not finite; after that no
            further steps are admitted.
        """
        report = None
        index = 0
        while await segment.admits(index):
            if report is not None and report.is_finite:
                on_step(report)  # now that another one follows: the last report is returned
            total = await self._agree(steps[index], await segment.wait_for_sums(index), stopping(), meter)
            if report is None or report.is_finite:
                report = await self._update(segment, steps[index], total, meter)
            meter.begin_step()
            segment.record_agreed(index, report.stop or not report.is_finite)
            index += 1
        assert report is not None
        return report

    async def _agree(self, step: int, account: StepAccount, stop: bool, meter: StepMeter) -> np.ndarray:
        """The totals of a step over all ranks."""
        vector = self.totals.vector(account, busy=meter.busy_s(), stop=stop, nbytes=meter.sent_bytes())
        with self.context.tracer.span("all_reduce", STEP_TOTALS, step=step):
            await all_reduce(self.world, vector)
        meter.leave_out_sent()
        return vector

    async def _update(self, segment: Segment, step: int, total: np.ndarray, meter: StepMeter) -> StepReport:
        """Update by the step's totals, if they are finite; its report."""
        totals, scale = self.totals, self.loss_scale
        rate = self.settings.rate(step)
        weight = totals.weight(total) / scale.value
        used = scale.value if scale.dynamic else None
        loss = totals.loss(total)
        norm = weight * totals.norm(total) / self.context.plan.updates_a_step**0.5
        skipped = scale.record(loss, norm)
        if math.isfinite(loss) and math.isfinite(norm):
            await segment.update(rate, weight * clip_factor(self.settings.clip, norm))
        if math.isfinite(loss) and (math.isfinite(norm) or skipped):  # a skipped step's forwards stay noted
            await self.statistics.merge(step)
        self._sent_by_update = meter.sent_bytes()
        lr = self.optimizer.param_groups[0]["lr"] if rate is None else rate
        seconds = meter.seconds()
        return StepReport(
            step,
            loss,
            norm,
            lr,
            step_s=seconds,
            idle_fraction=max(0.0, 1.0 - totals.busy(total) / seconds),
            stop=totals.stop(total),
            staleness=totals.staleness(total),
            nbytes=totals.nbytes(total),
            loss_scale=used,
            skipped=skipped,
            is_counted=totals.is_counted(total),
        )
