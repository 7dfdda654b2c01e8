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
from pipelined.actors.actor import Actor
from pipelined.programs.updates.step_totals import STEP_TOTALS, StepTotals
from pipelined.training.job.optimizer_settings import OptimizerSettings
from pipelined.training.job.rank_context import RankContext
from pipelined.training.optimizer import clip_factor
from pipelined.training.segments.loss_scale import LossScale
from pipelined.training.segments.segment import Segment
from pipelined.training.segments.step_report import StepReport
from pipelined.training.stages.running_statistics import StatisticsExchange


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

    async def follow(
        self,
        segment: Segment,
        steps: range,
        begun: tuple[float, float, int],
        *,
        stopping: Callable[[], bool],
        on_step: Callable[[StepReport], None],
    ) -> StepReport:
        """Agree on every completed step, in order, update, and admit further steps.

        Args:
            begun: the time at which the segment began, and until then the seconds that the executor had computed and
                the bytes that this rank had sent.
        Returns: the report of the last step, or of the first step with numbers that are not finite; after that no
            further steps are admitted.
        """
        executor = self.context.executor
        totals = self.totals
        report = None
        index = 0
        since, busy, sent = begun
        while await segment.admits(index):
            if report is not None and report.is_finite:
                on_step(report)
            account = await segment.complete(index)
            entry = totals.entry(
                account.squares,
                account.losses,
                executor.busy - busy,
                stopping(),
                account.staleness,
                count=account.count,
                nbytes=self._sent_by_update + payload_sent(self.context.actor) - sent,
            )
            busy = executor.busy
            with self.context.tracer.span("all_reduce", STEP_TOTALS, step=steps[index]):
                await all_reduce(self.world, entry)
            sent = payload_sent(self.context.actor)
            if report is None or report.is_finite:
                report = await self._update(segment, steps[index], entry, since)
            since = executor.clock.now()
            segment.record_agreed(index, report.stop or not report.is_finite)
            index += 1
        assert report is not None
        return report

    async def _update(self, segment: Segment, step: int, entry: np.ndarray, since: float) -> StepReport:
        """Update by the step's totals, if they are finite; its report."""
        totals, scale = self.totals, self.loss_scale
        rate = self.settings.rate(step)
        weight = totals.weight(entry) / scale.value
        used = scale.value if scale.dynamic else None
        loss = totals.loss(entry)
        norm = weight * totals.norm(entry) / self.context.plan.updates_a_step**0.5
        skipped = scale.record(loss, norm)
        before = payload_sent(self.context.actor)
        if math.isfinite(loss) and math.isfinite(norm):
            await segment.update(rate, weight * clip_factor(self.settings.clip, norm))
        if math.isfinite(loss) and (math.isfinite(norm) or skipped):  # a skipped step's forwards stay noted
            await self.statistics.merge(step)
        self._sent_by_update = payload_sent(self.context.actor) - before
        lr = self.optimizer.param_groups[0]["lr"] if rate is None else rate
        seconds = self.context.executor.clock.now() - since
        return StepReport(
            step,
            loss,
            norm,
            lr,
            step_s=seconds,
            idle_fraction=max(0.0, 1.0 - totals.busy(entry) / seconds),
            stop=totals.stop(entry),
            staleness=totals.staleness(entry),
            nbytes=totals.nbytes(entry),
            loss_scale=used,
            skipped=skipped,
        )


def payload_sent(actor: Actor) -> int:
    """Payload bytes that this rank has sent to others since it began, without those of a save beside the steps."""
    traffic = actor.transport.traffic
    return traffic.bytes_sent - traffic.bytes_to.get(actor.rank, 0) - traffic.object_bytes_sent
