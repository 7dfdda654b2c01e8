"""The trainer of one rank, put together from the description of its job: stages, gradient sums, optimizer, agreement.

Each group of ranks has one of the job's `Channels` to itself: that of all ranks, and those of stages and sums.
"""

from collections.abc import Mapping, Sequence

import torch

from collectives import Group
from pipelined.actors.actor import Actor
from pipelined.actors.device.executor import Executor
from pipelined.programs.plan import PlanError
from pipelined.programs.updates.step_totals import StepTotals, part_entry
from pipelined.traces.tracer import Tracer
from pipelined.training.evaluate import EvaluationContext
from pipelined.training.graph.compiled import require_compilable
from pipelined.training.job.description import JobDescription
from pipelined.training.optimizer import require_elementwise
from pipelined.training.optimizer.masters import MasterOptimizer
from pipelined.training.optimizer.rank_optimizer import RankOptimizer
from pipelined.training.rank_trainer import RankTrainer
from pipelined.training.segments.agreement import StepAgreement
from pipelined.training.segments.loss_scale import LossScale, require_scalable
from pipelined.training.segments.replay import Order
from pipelined.training.segments.versioned_stage import VersionedStage, build_versions
from pipelined.training.segments.weight_versions import NewestOnly, Versions
from pipelined.training.stages.build_stages import BuiltStages, build_stages, build_team_stages
from pipelined.training.stages.parameters import LocalParameters, build_local
from pipelined.training.stages.running_statistics import StatisticsExchange
from pipelined.training.stages.stage import Stage
from pipelined.training.stages.team_stage import TeamStage
from pipelined.training.sums.build_sums import build_accumulation, build_sums


def build_rank(
    actor: Actor, job: JobDescription, *, executor: Executor, tracer: Tracer, orders: Mapping[int, Order] | None = None
) -> RankTrainer:
    """Build the trainer of one rank.

    Args:
        actor: the rank's mailbox, open.
        executor: runs the computations, and names the torch device of this rank.
        orders: this rank's instructions by step, instead of its schedule; one for all steps where there is no flush.
    Raises:
        PlanError, ModelError, UsageError: the settings of the job do not go together. OutOfMemory.
    """
    stages = ", ".join(map(str, job.plan.stages_of(actor.rank)))
    executor.configure(owner=f"rank {actor.rank} (stages {stages})")
    with executor.doing("building the model and its optimizer"):
        return _rank_trainer(actor, job, executor, tracer, orders or {})


def _rank_trainer(
    actor: Actor, job: JobDescription, executor: Executor, tracer: Tracer, orders: Mapping[int, Order]
) -> RankTrainer:
    plan = job.plan
    if job.numerics.compile:
        require_compilable(plan, exact=job.numerics.exact_sums, attention=job.numerics.recompute_attention)
    local = build_local(job, actor.rank, torch.device(executor.device))
    world = Group(actor.transport, tuple(range(plan.world_size)), local.channels.world)
    accumulation = build_accumulation(job, world, executor, buckets=local.buckets, names=local.names)
    if plan.tensor > 1:
        built = build_team_stages(job, local, executor, actor.transport)
    else:
        built = build_stages(job, local, executor, accumulation)
    context = _context(job, actor, built, executor, tracer)
    rank_optimizer = (MasterOptimizer if job.numerics.has_masters else RankOptimizer)(job, local.updated, executor)
    if plan.tensor > 1 or local.divided:
        require_elementwise(rank_optimizer.optimizer)
    parts = range(accumulation.square_parts)
    entries = [part_entry(entry, part) for part in parts for entry in local.team.entries(local.names)]
    sums = build_sums(
        job,
        actor.transport,
        buckets=local.buckets,
        channels=local.channels,
        layouts=local.team.layouts,
        clock=executor.clock,
        tracer=tracer,
    )
    return RankTrainer(
        job=job,
        context=context,
        local=local,
        rank_optimizer=rank_optimizer,
        accumulation=accumulation,
        sums=sums,
        agreement=_agreement(job, context, world, rank_optimizer.optimizer, entries),
        versions=_versions(job, built.stages, local, rank_optimizer.optimizer),
        gathered=built.gathered,
        orders=orders,
    )


def _context(
    job: JobDescription, actor: Actor, built: BuiltStages, executor: Executor, tracer: Tracer
) -> EvaluationContext:
    return EvaluationContext(
        actor=actor,
        plan=job.plan,
        stages=built.stages,
        executor=executor,
        feed=job.feed,
        tracer=tracer,
        seed=job.seed if job.dropout_seed is None else job.dropout_seed,
        codec=job.numerics.compress,
        recompute=job.numerics.recompute or job.numerics.recompute_at_newest,
        skips=built.skips,
        follows_proved_order=built.gathered is not None,
    )


def _agreement(
    job: JobDescription,
    context: EvaluationContext,
    world: Group,
    optimizer: torch.optim.Optimizer,
    entries: Sequence[str],
) -> StepAgreement:
    plan = job.plan
    return StepAgreement(
        context=context,
        world=world,
        totals=StepTotals(entries, plan.total_microbatches, 0 if plan.flushes else plan.depth),
        statistics=StatisticsExchange(context, {index: stage.statistics for index, stage in context.stages.items()}),
        optimizer=optimizer,
        settings=job.optimizer_settings,
        loss_scale=_loss_scale(job),
    )


def _versions(
    job: JobDescription,
    stages: Mapping[int, Stage | TeamStage],
    local: LocalParameters,
    optimizer: torch.optim.Optimizer,
) -> VersionedStage | None:
    """The one stage of a schedule without a flush, with its versions; None with a flush."""
    if job.plan.flushes:
        return None
    (stage,) = stages.values()
    if isinstance(stage, TeamStage):
        fact = f"{job.plan.schedule} has no flush, and a team needs one (tensor: {job.plan.tensor})"
        raise PlanError(f"{fact}; use tensor 1, or a schedule with a flush")
    updates = job.plan.stage_map.updates
    kind = NewestOnly if job.numerics.recompute_at_newest else Versions
    return build_versions(stage, local.buckets, job.optimizer_settings, optimizer, updates, kind=kind)


def _loss_scale(job: JobDescription) -> LossScale:
    if job.numerics.scales_loss:
        require_scalable(job.plan, job.numerics.exact_sums)
    return LossScale(dynamic=job.numerics.scales_loss)
