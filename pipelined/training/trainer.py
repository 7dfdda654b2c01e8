"""The trainer of one rank: it builds the stages and trains segments, from one drain of the pipe to the next.

A step with a flush is: run the schedule, finish the gradient sums, agree on norm and loss, update. Without a flush
steps overlap: stages are updated while the schedule runs, and the ranks agree on a step's numbers some steps later.
"""

import asyncio
from collections.abc import Callable, Mapping

import torch

from collectives import Group
from pipelined.actors.actor import Actor
from pipelined.actors.agree import agree
from pipelined.actors.executor import Executor
from pipelined.aio.nursery import Nursery
from pipelined.programs.bucket_names import Stages
from pipelined.programs.exact_grid import require_exact
from pipelined.programs.partition import partition
from pipelined.programs.plan import PlanError
from pipelined.programs.prepare import Prepared, prepare
from pipelined.programs.step_totals import StepTotals
from pipelined.sharding.groups import MeshGroups
from pipelined.traces.file import Tracer
from pipelined.training.digests import require_equal_replicas
from pipelined.training.exchange.compression import Compression
from pipelined.training.job import JobDescription, Numerics
from pipelined.training.loss_scale import LossScale, require_scalable
from pipelined.training.optimizer import require_elementwise
from pipelined.training.optimizer.state import OptimizerState
from pipelined.training.parameters import LocalParameters, build_local
from pipelined.training.rank_context import RankContext
from pipelined.training.replay import Order
from pipelined.training.running_statistics import StatisticsExchange
from pipelined.training.segments.agreement import StepAgreement, payload_sent
from pipelined.training.segments.flushed_step import FlushedStep
from pipelined.training.segments.overlapping_steps import OverlappingSteps
from pipelined.training.segments.segment import Segment
from pipelined.training.segments.stage_updates import AfterUpdate, do_nothing
from pipelined.training.segments.versioned_stage import VersionedStage, versioned
from pipelined.training.stage import Stage
from pipelined.training.step_report import StepReport, diverged
from pipelined.training.sums.accumulation import Accumulation
from pipelined.training.sums.divided_sums import DividedSums
from pipelined.training.sums.division import BucketShare
from pipelined.training.sums.exact_sums import ExactSums
from pipelined.training.sums.gradient_sums import GradientSums
from pipelined.training.sums.halves import require_divisible
from pipelined.training.teams.model import split_model
from pipelined.training.teams.pieces import TeamSums
from pipelined.training.teams.stage import TeamStage


class RankTrainer:
    """One rank of a training job.

    Args:
        actor: the rank's mailbox, open.
        executor: runs the computations, and names the torch device of this rank.
        orders: this rank's instructions by step, instead of its schedule; one for all steps where there is no flush.
    """

    def __init__(
        self,
        actor: Actor,
        job: JobDescription,
        *,
        executor: Executor,
        tracer: Tracer,
        orders: Mapping[int, Order] | None = None,
    ):
        self.model, self.plan, self.optimizer_config = job.model, job.plan, job.optimizer_config
        plan, device = job.plan, torch.device(executor.device)
        self.local: LocalParameters = build_local(
            job.model,
            plan,
            actor.rank,
            sequence=job.sequence,
            dtype=job.numerics.dtype,
            device=device,
            seed=job.seed if job.fresh else None,
            cut=job.cut,
            divided=job.numerics.shard_optimizer,
        )
        self.world = Group(actor.transport, tuple(range(plan.world_size)), self.local.channels.world)
        self.accumulation = self._accumulation(job, executor)
        state = split_model(job.model).state if plan.tensor > 1 else "none"
        self._gathered: dict[str, torch.Tensor] | None = {} if state == "zero2" else None
        stages = {index: self._stage(job, index, actor, executor) for index in self.local.modules}
        compression = Compression(actor, job.numerics.compress, tracer)
        self.loss_scale = self._loss_scale(job)
        self.context = RankContext(
            actor,
            plan,
            stages,
            executor,
            job.feed,
            tracer,
            job.seed,
            compression,
            in_order=state != "none",
        )
        self.optimizer = job.optimizer_config.build(self.local.updated)
        self.optimizer_state = OptimizerState.of(self.optimizer)
        if plan.tensor > 1 or self.local.divided:
            require_elementwise(self.optimizer)
        self.sums = self._gradient_sums(job.numerics, tracer)
        statistics = StatisticsExchange(self.context, {n: stage.statistics for n, stage in stages.items()})
        entries = self.local.team.entries(self.local.names)
        totals = StepTotals(entries, plan.total_microbatches, 0 if plan.flushes else plan.depth)
        self._agreement = StepAgreement(
            self.context,
            self.world,
            totals,
            statistics=statistics,
            optimizer=self.optimizer,
            config=job.optimizer_config,
            loss_scale=self.loss_scale,
        )
        self._orders = orders or {}
        self._held: VersionedStage | None = None
        if not plan.flushes:
            (stage,) = stages.values()
            assert isinstance(stage, Stage)
            self._held = versioned(
                stage, self.local.buckets, self.optimizer_config, self.optimizer, plan.layout.updates
            )
        self._prepared: Prepared | None = None

    def _stage(self, job: JobDescription, index: int, actor: Actor, executor: Executor) -> Stage | TeamStage:
        plan, module, numerics = job.plan, self.local.modules[index], job.numerics
        replicas, device = len(plan.holders(index)), torch.device(executor.device)
        if plan.tensor > 1:
            layers = partition(job.model.costs(job.sequence), plan.depth)[index]
            network = MeshGroups(actor.transport, self.local.channels.stage_moves(index), ranks=plan.team(actor.rank))
            model, passes = split_model(job.model), (numerics.autocast, numerics.recompute)
            return TeamStage(
                model, module, layers, index, network, executor, *passes, replicas, gathered=self._gathered
            )
        parts = job.model, module, index, plan.depth, device, numerics.autocast, numerics.recompute, replicas
        return Stage(*parts, accumulation=self.accumulation)

    def _gradient_sums(self, numerics: Numerics, tracer: Tracer) -> GradientSums:
        if not numerics.shard_optimizer:
            return GradientSums(self._bucket_groups(), numerics.all_reduce, tracer, self._team_sums())
        require_divisible(self.plan, numerics.all_reduce)
        return DividedSums(self._share_groups(), numerics.all_reduce, tracer)

    def _share_groups(self) -> dict[BucketShare, Group]:
        """The holders of each share."""
        transport, channels = self.context.actor.transport, self.local.channels
        return {
            share: Group(transport, share.holders, channels.share_sum(b.stages, share.copies))
            for b in self.local.buckets
            if b.division is not None
            for share in b.division.shares
        }

    def _team_sums(self) -> TeamSums | None:
        transport, plan = self.context.actor.transport, self.plan
        if plan.tensor == 1:
            return None
        return TeamSums(self.local.team.lie, transport, plan.team(transport.rank), self.local.channels)

    def _accumulation(self, job: JobDescription, executor: Executor) -> Accumulation:
        if not job.numerics.exact_sums:
            return Accumulation()
        require_exact(job.plan, job.numerics.compress)
        return ExactSums(
            self.world,
            executor,
            buckets=self.local.buckets,
            tied=getattr(job.model, "tied", ()),
            microbatches=job.plan.total_microbatches,
            names=self.local.names,
        )

    def _loss_scale(self, job: JobDescription) -> LossScale:
        if job.numerics.scales_loss:
            require_scalable(job.plan, job.numerics.exact_sums)
        return LossScale(dynamic=job.numerics.scales_loss)

    async def step(self, step: int, stopping: Callable[[], bool] = lambda: False) -> StepReport:
        """Train one step, and drain; see `train`."""
        return await self.train(range(step, step + 1), stopping)

    async def train(
        self,
        steps: range,
        stopping: Callable[[], bool] = lambda: False,
        on_step: Callable[[StepReport], None] = lambda report: None,
        after_update: AfterUpdate = do_nothing,
    ) -> StepReport:
        """Train one segment: some steps, and a drain behind the last. With a flush a segment is one step.

        Args:
            steps: the steps from 0, the same on all ranks; they select data, random numbers and learning rates.
            stopping: whether this rank received a stop request; called at the end of each step. The report tells all
                ranks. Without a flush all ranks stop a few steps after the first request.
            on_step: called with the report of each step but the last, in order, as soon as all ranks have completed it.
            after_update: without a flush, see `StageUpdates`.
        Returns: the report of the last step.
        Raises:
            PlanError: several steps with a flush, or clipping by the global norm without one; nothing is computed.
            AgreedError: loss or norm of a step is not finite. With a flush nothing is updated; without one the steps
                already in the pipe are completed.
        """
        if self.plan.flushes and len(steps) != 1:
            fact = f"{self.plan.schedule} drains the pipe behind every step (steps: {len(steps)})"
            raise PlanError(f"{fact}; train one step at a time")
        self._prepared = self._prepared or await self._prepare()
        begun = self.context.executor.clock.now(), self.context.executor.busy, payload_sent(self.context.actor)
        segment = self._segment(steps, self._prepared, after_update)
        async with Nursery() as tasks:
            agreement = tasks.create_task(
                self._agreement.follow(segment, steps, begun, stopping=stopping, on_step=on_step)
            )
            await segment.run()
        report = agreement.result()
        if self._gathered is not None:
            self._gathered.clear()  # the step has changed the weights
        if report.skipped or not report.is_finite:
            self.local.clear_gradients()  # else a later step of this trainer would add to them
        if not report.is_finite:
            raise diverged(report)
        return report

    async def planned_sum_bytes(self) -> int:
        """Payload bytes of this rank's gradient sums in a step. All ranks call this, as it prepares the first one."""
        self._prepared, agreed = self._prepared or await self._prepare(), self.accumulation.agreed
        return self.plan.updates_a_step * await self.sums.planned_bytes(self.local.buckets, self.world, agreed)

    def state_of(self, name: str) -> dict[str, torch.Tensor]:
        """The tensors that a checkpoint saves for a parameter or a buffer, older versions of it included."""
        if name in self.local.kept:
            return {"value": self.local.kept[name]}
        older = {} if self._held is None else self._held.older(name)
        kept = self.accumulation.state_of(name)
        return {**self.optimizer_state.fields(self.local.updated[name]), **older, **kept}

    def restore(self, state: Mapping[str, Mapping[str, torch.Tensor]], updates: int) -> None:
        """Restore the results of `state_of` for every tensor held, saved after `updates` updates."""
        updated = self.local.updated
        for name, parameter in self.local.parameters.items():
            fields = state[name]
            with torch.no_grad():
                parameter.copy_(fields["value"])
            if name in updated:
                self.optimizer_state.restore(updated[name], self.local.of_update(name, fields), updates)
            self.accumulation.restore(name, fields)
        with torch.no_grad():
            for name, buffer in self.local.kept.items():
                buffer.copy_(state[name]["value"])
        if self._held is not None:
            self._held.restore(state)

    def _segment(self, steps: range, prepared: Prepared, after_update: AfterUpdate) -> Segment:
        if self._held is not None:
            return OverlappingSteps(
                self.context,
                self._held,
                self.sums,
                self.optimizer_config,
                steps=steps,
                prepared=prepared,
                orders=self._orders,
                after_update=after_update,
            )
        order = self._orders.get(steps[0], self._orders[max(self._orders)]) if self._orders else ()
        return FlushedStep(
            self.context,
            self.local,
            self.sums,
            self.optimizer,
            accumulation=self.accumulation,
            step=steps[0],
            prepared=prepared,
            order=order,
            loss_scale=self.loss_scale.value,
        )

    async def _prepare(self) -> Prepared:
        """Before the first step: prove the schedule, and open what the gradient sums need."""
        if self.optimizer_config.clip and not self.plan.flushes:
            fact = f"{self.plan.schedule} updates a stage before the others' gradients are known (clip: "
            raise PlanError(f"{fact}{self.optimizer_config.clip:g}); do not clip by the global norm")
        await require_equal_replicas(self.context.actor.transport, self.local)
        prepared = await asyncio.to_thread(prepare, self.plan, self.context.worker)
        await self._ready_sums()
        if self.plan.flushes:
            await self.sums.place(self.local.buckets)
        return prepared

    async def _ready_sums(self) -> None:
        """Prepare the gradient sums, or refuse an algorithm that the transport does not support."""
        await agree(self.context.actor.transport, "sums", self.sums.ready())

    def _bucket_groups(self) -> dict[Stages, Group]:
        transport, channels = self.context.actor.transport, self.local.channels
        return {b.stages: Group(transport, b.holders, channels.bucket_sum(b.stages)) for b in self.local.buckets}
