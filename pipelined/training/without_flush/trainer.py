"""The trainer of one rank without a flush: one coroutine runs a segment of steps, from one drain to the next.

Stages are updated while microbatches are under way, so an update cannot wait for a whole step. The numbers on which all
ranks agree, such as the global gradient norm, are known only some steps later, so gradients cannot be clipped by it.
Every rank ends a segment at the same step with nothing under way; there the model can be evaluated and saved, and a
resumed run continues bit for bit.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch

from collectives import all_reduce
from pipelined.aio.nursery import Nursery
from pipelined.programs.plan import PlanError
from pipelined.programs.prepare import Prepared, prepare
from pipelined.programs.staleness import steps_to_fill
from pipelined.training.equal_replicas import require_equal_replicas
from pipelined.training.replay import follow_steps
from pipelined.training.trainer import StepReport, Trainer, check_finite
from pipelined.training.without_flush.admission import Admission
from pipelined.training.without_flush.stage_updates import StageUpdates
from pipelined.training.without_flush.versioned_stage import Lent, VersionedStage
from pipelined.training.without_flush.versions import Versions
from pipelined.training.without_flush.worker import AsynchronousWorker

OLDER = "version"
"""Prefix of a field with an older version: `version-1` holds a parameter's value one update before."""


class AsynchronousTrainer(Trainer):
    """One rank of a training job with a schedule that has no flush; constructed like a `Trainer`."""

    @cached_property
    def _held(self) -> VersionedStage:
        """The one stage of this rank, with the versions of each of its buckets."""
        (stage,) = self.context.stages.values()
        stage.module = Lent(stage.module)
        kept = self.plan.layout.updates.delay or 0
        versions = {b.stages: Versions(b, self._optimizer_of(b.parameters), kept) for b in self.local.buckets}
        return VersionedStage(stage, versions)

    async def step(self, step: int, stopping: Callable[[], bool] = lambda: False) -> StepReport:
        """Train one step, and drain."""
        return await self.segment(range(step, step + 1), stopping)

    async def segment(
        self,
        steps: range,
        stopping: Callable[[], bool],
        tell: Callable[[StepReport], None] = lambda report: None,
    ) -> StepReport:
        """Train some steps without a flush between them, and drain.

        Args:
            steps: the steps, the same on all ranks.
            stopping: whether this rank received a stop request; all ranks stop a few steps after the first request.
            tell: called with the report of each step but the last, in order, as soon as all ranks have completed it.
        Returns: the report of the last step.
        Raises:
            PlanError: the optimizer clips by the global norm; nothing has been computed.
            AgreedError: loss or norm of a step is not finite; the steps already in the pipe are completed.
        """
        self._prepared = self._prepared or await self._prepare()
        schedule, shape = self._prepared.schedule, replace(self.plan.shape, steps=len(steps))
        layout, each = schedule.layout(shape), self.plan.microbatches
        every, admission = layout.updates.every, Admission(len(steps), steps_to_fill(shape))

        def rate(update: int) -> float:
            return self.optimizer_config.rate(steps.start + update * every // each)

        worker = AsynchronousWorker(
            self.context,
            layout,
            start=steps.start,
            held=self._held,
            admission=admission,
            updates=lambda account: StageUpdates(
                context=self.context, held=self._held, layout=layout, rate=rate, sums=self.sums, account=account
            ),
        )
        async with Nursery() as tasks:
            settling = tasks.create_task(self._settle(worker, admission, steps, stopping, tell))
            if self._orders:
                await follow_steps(worker, self._orders, steps, each)
            else:
                await schedule.schedule(worker)
            await worker.drain()
        report = settling.result()
        check_finite(report.step, report.loss, report.grad_norm)
        return report

    def state_of(self, name: str) -> dict[str, torch.Tensor]:
        """A parameter's value and optimizer state, with its older versions if the next step uses them."""
        older = {
            f"{OLDER}{number}": leaves[name].detach()
            for versions in self._held.versions.values()
            if name in versions.bucket.parameters
            for number, leaves in versions.older().items()
        }
        return {**super().state_of(name), **older}

    def restore(self, state: Mapping[str, Mapping[str, torch.Tensor]], updates: int) -> None:
        """Restore the results of `state_of` for every parameter; a missing older version equals the value."""
        super().restore(state, updates)
        for versions in self._held.versions.values():
            parameters = versions.bucket.parameters
            numbers = [int(f.removeprefix(OLDER)) for f in state[next(iter(parameters))] if f.startswith(OLDER)]
            older = {n: {name: state[name][f"{OLDER}{n}"].to(p) for name, p in parameters.items()} for n in numbers}
            versions.restore(older)

    async def _prepare(self) -> Prepared:
        """Before the first segment: prove the schedule for as many steps as fill the pipe."""
        if self.optimizer_config.clip:
            fact = f"{self.plan.schedule} updates a stage before the others' gradients are known (clip: "
            raise PlanError(f"{fact}{self.optimizer_config.clip:g}); do not clip by the global norm")
        await require_equal_replicas(self.context.actor.transport, self.local)
        prepared = await asyncio.to_thread(prepare, self.plan, self.context.worker)
        await self._ready_sums()
        return prepared

    async def _settle(
        self,
        worker: AsynchronousWorker,
        admission: Admission,
        steps: range,
        stopping: Callable[[], bool],
        tell: Callable[[StepReport], None],
    ) -> StepReport:
        """Agree on every completed step, in order, and admit further steps.

        Returns: the report of the last step, or of the first step with numbers that are not finite; after that no
            further steps are admitted.
        """
        clock, device, report, number = self.context.device.clock, self.context.device, None, 0
        since, busy = clock.now(), device.busy
        while await admission.enters(number):
            account = worker.accounts[number]
            await account.complete()
            if report is not None and report.is_finite:
                tell(report)
            losses = worker.close(number)
            entry = self._entry(account.squares, losses, device.busy - busy, stopping(), account.staleness)
            busy = device.busy
            await all_reduce(self.world, entry)
            if report is None or report.is_finite:
                report = self._report(steps[number], entry, clock.now() - since)
            since = clock.now()
            del worker.accounts[number]
            admission.settle(number, report.stop or not report.is_finite)
            worker.open()
            number += 1
        assert report is not None
        return report

    def _entry(
        self, squares: Mapping[str, float], losses: Mapping[int, float], busy: float, stop: bool, staleness: int
    ) -> np.ndarray:
        """This rank's part of the sum over all ranks: the totals of the step, followed by the stage's delays."""
        delays = np.zeros(self.plan.depth)
        delays[self._held.stage.index] = staleness
        return np.concatenate([self._totals.entry(squares, losses, busy, stop), delays])

    def _report(self, step: int, entry: np.ndarray, seconds: float) -> StepReport:
        total, delays = entry[: len(self._totals)], entry[len(self._totals) :]
        updates = self.plan.updates_a_step
        return StepReport(
            step,
            self._totals.loss(total),
            self._totals.norm(total) / updates**0.5,
            self.optimizer_config.rate(step),
            seconds,
            max(0.0, 1.0 - self._totals.busy(total) / seconds),
            self._totals.stop(total),
            tuple(float(delay) / self.plan.total_microbatches for delay in delays),
        )

    def _optimizer_of(self, parameters: Mapping[str, torch.nn.Parameter]) -> torch.optim.Optimizer:
        """An optimizer of some parameters; it shares its state with the optimizer of all."""
        optimizer = self.optimizer_config.build(parameters)
        optimizer.state = self.optimizer.state
        return optimizer
