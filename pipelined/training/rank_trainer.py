"""The trainer of one rank: it trains segments, from one drain of the pipe to the next.

A step with a flush is: run the schedule, finish the gradient sums, agree on norm and loss, update. Without a flush
steps overlap: stages are updated while the schedule runs, and the ranks agree on a step's numbers some steps later.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import torch

from pipelined.actors.agree import agree, require_equal
from pipelined.programs.plan import PlanError
from pipelined.programs.prepare import Prepared, prepare
from pipelined.training.digests import require_equal_replicas
from pipelined.training.evaluate import EvaluationContext
from pipelined.training.job.description import JobDescription
from pipelined.training.optimizer.rank_optimizer import RankOptimizer
from pipelined.training.segments.agreement import StepAgreement
from pipelined.training.segments.flushed_step import FlushedStep
from pipelined.training.segments.overlapping_steps import OverlappingSteps
from pipelined.training.segments.replay import Order
from pipelined.training.segments.segment import Segment
from pipelined.training.segments.stage_updates import NO_LISTENER, UpdateListener
from pipelined.training.segments.step_report import StepReport, diverged
from pipelined.training.segments.versioned_stage import VersionedStage
from pipelined.training.stages.parameters import LocalParameters
from pipelined.training.sums.accumulation import Accumulation
from pipelined.training.sums.gradient_sums import GradientSums
from transports import Nursery


@dataclass(eq=False, kw_only=True)
class RankTrainer:
    """One rank of a training job; `pipelined.training.assemble.build_rank` puts it together.

    Args:
        local: the parameters of the rank, which the stages of the context compute with.
        rank_optimizer: of all that the rank updates.
        accumulation, sums: of the gradients.
        agreement: of all ranks, on each step.
        versions: of the weights of the stage; None: there is a flush.
        gathered: weights that the stages keep gathered during a step; None: they keep none.
        orders: see `build_rank`.
    """

    job: JobDescription
    context: EvaluationContext
    local: LocalParameters
    rank_optimizer: RankOptimizer
    accumulation: Accumulation
    sums: GradientSums
    agreement: StepAgreement
    versions: VersionedStage | None
    gathered: dict[str, torch.Tensor] | None
    orders: Mapping[int, Order]
    prepared: Prepared | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.model = self.job.model
        self.plan = self.job.plan
        self.optimizer = self.rank_optimizer.optimizer
        self.world = self.agreement.world
        self.loss_scale = self.agreement.loss_scale

    async def step(self, step: int, stopping: Callable[[], bool] = lambda: False) -> StepReport:
        """Train one step, and drain; see `train`."""
        return await self.train(range(step, step + 1), stopping)

    async def train(
        self,
        steps: range,
        stopping: Callable[[], bool] = lambda: False,
        on_step: Callable[[StepReport], None] = lambda report: None,
        listener: UpdateListener = NO_LISTENER,
    ) -> StepReport:
        """Train one segment: some steps, and a drain after the last. With a flush a segment is one step.

        Args:
            steps: the steps from 0, the same on all ranks; they select data, random numbers and learning rates.
            stopping: whether this rank received a stop request; called at the end of each step. The report tells all
                ranks. Without a flush all ranks stop a few steps after the first request.
            on_step: called with the report of each step but the last, in order, as soon as all ranks have completed it.
            listener: of the updates of a schedule without a flush.
        Returns: the report of the last step.
        Raises:
            PlanError: several steps with a flush, or clipping by the global norm without one; nothing is computed.
            AgreedError: loss or norm of a step is not finite. With a flush nothing is updated; without one the steps
                already in the pipe are completed.
        """
        if self.plan.flushes and len(steps) != 1:
            fact = f"{self.plan.schedule} drains the pipe after every step (steps: {len(steps)})"
            raise PlanError(f"{fact}; train one step at a time")
        prepared = await self.prepare()
        meter = self.agreement.new_meter()
        segment = self._segment(steps, prepared, listener)
        async with Nursery() as tasks:
            agreement = tasks.create_task(
                self.agreement.complete_steps(segment, steps, meter, stopping=stopping, on_step=on_step)
            )
            await segment.run()
        report = agreement.result()
        if self.gathered is not None:
            self.gathered.clear()  # the step has changed the weights
        if report.skipped or not report.is_finite:
            self.local.clear_gradients()  # else a later step of this trainer would add to them
        if not report.is_finite:
            self.agreement.statistics.drop()
            raise diverged(report)
        return report

    async def prepare(self) -> Prepared:
        """Prepare the first step now, if `prepared` is None; all ranks call this. Else the first step does it."""
        self.prepared = self.prepared or await self._prepare()
        return self.prepared

    async def planned_sum_bytes(self) -> int:
        """Payload bytes of this rank's gradient sums in a step. All ranks call this, as it prepares the first one."""
        agreed = self.accumulation.agreed_numbers
        await self.prepare()
        return self.plan.updates_a_step * await self.sums.planned_bytes(self.local.buckets, self.world, agreed)

    async def merge_statistics(self, step: int) -> None:
        """Without a flush: take the steps before this one into the running statistics, before all ranks agree on them.

        The buffers then depend on the number of updates alone. No other rank may hold the stage.
        """
        await self.agreement.statistics.merge_until(step)

    @asynccontextmanager
    async def with_last_update(self) -> AsyncIterator[None]:
        """Inside the `async with` block the parameters have the values of the last update, which is waited for.

        All ranks enter it together, between two steps. The next step computes as without it.

        Cost: nothing without a delayed update; with one a copy of the parameters, and where ranks divide the update
            their values to the other holders.
        """
        await self.rank_optimizer.finish_update()
        if not self.job.numerics.delayed_update:
            yield
            return
        await self.prepare()
        parameters = self.local.parameters
        in_use = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        try:
            await self.rank_optimizer.use_values()
            await self.sums.publish(self.local.buckets, self.context.executor)
            yield
        finally:
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(in_use[name])

    def state_of(self, name: str) -> dict[str, torch.Tensor]:
        """The tensors that a checkpoint saves for a parameter or a buffer, older versions of it included."""
        if name in self.local.buffers:
            return {"value": self.local.buffers[name]}
        older = {} if self.versions is None else self.versions.older(name)
        sums = self.accumulation.state_of(name)
        return {**self.rank_optimizer.fields(name), **older, **sums}

    def restore(self, state: Mapping[str, Mapping[str, torch.Tensor]], updates: int) -> None:
        """Restore the results of `state_of` for every tensor held, saved after `updates` updates."""
        updated = self.local.updated
        for name, parameter in self.local.parameters.items():
            fields = state[name]
            with torch.no_grad():
                parameter.copy_(self.rank_optimizer.value_in_use(fields))
            if name in updated:
                self.rank_optimizer.restore(name, self.local.updated_rows(name, fields), updates)
            self.accumulation.restore(name, fields)
        with torch.no_grad():
            for name, buffer in self.local.buffers.items():
                buffer.copy_(state[name]["value"])
        if self.versions is not None:
            self.versions.restore(state)

    def _segment(self, steps: range, prepared: Prepared, listener: UpdateListener) -> Segment:
        if self.versions is not None:
            return OverlappingSteps(
                self.context,
                self.versions,
                self.sums,
                self.job.optimizer_settings,
                steps=steps,
                prepared=prepared,
                orders=self.orders,
                listener=listener,
            )
        order = self.orders.get(steps[0], self.orders[max(self.orders)]) if self.orders else ()
        return FlushedStep(
            context=self.context,
            local=self.local,
            sums=self.sums,
            rank_optimizer=self.rank_optimizer,
            accumulation=self.accumulation,
            step=steps[0],
            prepared=prepared,
            order=order,
            loss_scale=self.loss_scale.value,
        )

    async def _prepare(self) -> Prepared:
        """Before the first step: prove the schedule, and open what the gradient sums need."""
        if self.job.optimizer_settings.clip and not self.plan.flushes:
            fact = f"{self.plan.schedule} updates a stage before the others' gradients are known (clip: "
            raise PlanError(f"{fact}{self.job.optimizer_settings.clip:g}); do not clip by the global norm")
        await require_equal_replicas(self.context.actor.transport, self.local)
        prepared = await asyncio.to_thread(prepare, self.plan, self.context.worker)
        if prepared.digest:
            remedy = "give all ranks the same code, and let a schedule depend on its worker alone"
            order = {f"order of {self.plan.schedule}": prepared.digest}
            await require_equal(self.context.actor.transport, "instructions", order, remedy)
        await agree(self.context.actor.transport, "sums", self.sums.open_resources())
        if self.plan.flushes:
            await self.sums.allocate_shared(self.local.buckets)
        return prepared
