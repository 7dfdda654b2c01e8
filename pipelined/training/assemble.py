"""The trainer of one rank, put together from the description of its job: stages, gradient sums, optimizer, agreement.

Every group of ranks is made here, each on its own of the job's `Channels`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from collectives import Group
from collectives.algorithms import may_share_memory
from pipelined.actors.actor import Actor
from pipelined.actors.device.executor import Executor
from pipelined.programs.partition import partition
from pipelined.programs.plan import PlanError
from pipelined.programs.updates.exact_grid import require_exact
from pipelined.programs.updates.step_totals import StepTotals, part_entry
from pipelined.sharding import MeshGroups
from pipelined.traces.tracer import Tracer
from pipelined.training.evaluate import EvaluationContext
from pipelined.training.exchange.skips import NO_SKIPS, Skips
from pipelined.training.graph.compiled import require_compilable
from pipelined.training.job.description import JobDescription
from pipelined.training.job.model import HandsOn
from pipelined.training.optimizer import require_elementwise
from pipelined.training.optimizer.masters import MasterOptimizer
from pipelined.training.optimizer.rank_optimizer import RankOptimizer
from pipelined.training.rank_trainer import RankTrainer
from pipelined.training.segments.agreement import StepAgreement
from pipelined.training.segments.loss_scale import LossScale, require_scalable
from pipelined.training.segments.replay import Order
from pipelined.training.segments.versioned_stage import VersionedStage, versioned
from pipelined.training.segments.weight_versions import NewestOnly, Versions
from pipelined.training.stages.parameters import LocalParameters, build_local
from pipelined.training.stages.running_statistics import StatisticsExchange
from pipelined.training.stages.stage import Stage
from pipelined.training.stages.team_stage import TeamStage
from pipelined.training.sums.accumulation import Accumulation
from pipelined.training.sums.all_reduce_halves import require_divisible
from pipelined.training.sums.divided_sums import DividedSums
from pipelined.training.sums.exact_sums import ExactSums
from pipelined.training.sums.gradient_sums import GradientSums
from pipelined.training.teams.pieces import TeamSums
from pipelined.training.teams.team_model import require_team_model
from transports import Transport


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


class _Parts(NamedTuple):
    """The parts of a trainer that differ between a worker of one rank and a member of a team."""

    stages: Mapping[int, Stage | TeamStage]
    gathered: dict[str, torch.Tensor] | None
    skips: Skips
    team_sums: TeamSums | None


def _rank_trainer(
    actor: Actor, job: JobDescription, executor: Executor, tracer: Tracer, orders: Mapping[int, Order]
) -> RankTrainer:
    plan = job.plan
    if job.numerics.compile:
        require_compilable(plan, exact=job.numerics.exact_sums, attention=job.numerics.recompute_attention)
    local = build_local(job, actor.rank, torch.device(executor.device))
    world = Group(actor.transport, tuple(range(plan.world_size)), local.channels.world)
    accumulation = _accumulation(job, local, world, executor)
    if plan.tensor > 1:
        parts = _parts_of_member(job, local, actor.transport, executor)
    else:
        parts = _parts_of_worker(job, local, executor, accumulation)
    context = _context(job, actor, parts, executor, tracer)
    rank_optimizer = (MasterOptimizer if job.numerics.has_masters else RankOptimizer)(job, local.updated, executor)
    if plan.tensor > 1 or local.divided:
        require_elementwise(rank_optimizer.optimizer)
    of_parts = range(accumulation.square_parts)
    entries = [part_entry(entry, part) for part in of_parts for entry in local.team.entries(local.names)]
    return RankTrainer(
        job=job,
        context=context,
        local=local,
        rank_optimizer=rank_optimizer,
        accumulation=accumulation,
        sums=_gradient_sums(job, local, actor.transport, tracer, parts.team_sums),
        agreement=_agreement(job, context, world, rank_optimizer.optimizer, entries),
        versions=_versions(job, parts.stages, local, rank_optimizer.optimizer),
        gathered=parts.gathered,
        orders=orders,
    )


def _parts_of_worker(
    job: JobDescription, local: LocalParameters, executor: Executor, accumulation: Accumulation
) -> _Parts:
    stages = {index: _stage(job, local, index, executor, accumulation) for index in local.modules}
    return _Parts(stages, None, _skips(job), None)


def _parts_of_member(job: JobDescription, local: LocalParameters, transport: Transport, executor: Executor) -> _Parts:
    """Of a team nothing goes past stages, in pieces. Where holders divide updates, their sums are those of the team."""
    gathered: dict[str, torch.Tensor] | None = {} if require_team_model(job.model).shards_weights else None
    stages = {index: _team_stage(job, local, index, transport, executor, gathered=gathered) for index in local.modules}
    if job.numerics.shard_optimizer:
        return _Parts(stages, gathered, NO_SKIPS, None)
    members = job.plan.team(transport.rank)
    shared = may_share_memory(job.numerics.all_reduce)
    sums = TeamSums(local.team.layouts, transport, members, local.channels, executor.clock, through_memory=shared)
    return _Parts(stages, gathered, NO_SKIPS, sums)


def _context(job: JobDescription, actor: Actor, parts: _Parts, executor: Executor, tracer: Tracer) -> EvaluationContext:
    return EvaluationContext(
        actor=actor,
        plan=job.plan,
        stages=parts.stages,
        executor=executor,
        feed=job.feed,
        tracer=tracer,
        seed=job.seed if job.dropout_seed is None else job.dropout_seed,
        codec=job.numerics.compress,
        recompute=job.numerics.recompute or job.numerics.recompute_at_newest,
        skips=parts.skips,
        in_order=parts.gathered is not None,
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


def _skips(job: JobDescription) -> Skips:
    """What goes past stages: nothing where they are compiled, and take tensors alone."""
    if job.numerics.compile or not isinstance(job.model, HandsOn):
        return NO_SKIPS
    cut = job.cut or partition(job.model.costs(job.sequence), job.plan.depth)
    return Skips.of([job.model.handed_on(layers, job.numerics.dtype) for layers in cut[1:-1]])


def _team_stage(
    job: JobDescription,
    local: LocalParameters,
    index: int,
    transport: Transport,
    executor: Executor,
    *,
    gathered: dict[str, torch.Tensor] | None,
) -> TeamStage:
    plan = job.plan
    channel = local.channels.stage_moves(index)
    shared = may_share_memory(job.numerics.all_reduce)
    return TeamStage(
        model=require_team_model(job.model),
        module=local.modules[index],
        layers=partition(job.model.costs(job.sequence), plan.depth)[index],
        index=index,
        network=MeshGroups(transport, channel, ranks=plan.team(transport.rank), through_memory=shared),
        executor=executor,
        autocast=job.numerics.autocast,
        recompute=job.numerics.recompute,
        replicas=len(plan.holders(index)),
        gathered=gathered,
    )


def _stage(
    job: JobDescription, local: LocalParameters, index: int, executor: Executor, accumulation: Accumulation
) -> Stage:
    return Stage(
        job.model,
        local.modules[index],
        index,
        job.plan.depth,
        torch.device(executor.device),
        autocast=job.numerics.autocast,
        recompute=job.numerics.recompute or job.numerics.recompute_at_newest,
        input_only=job.numerics.recompute_at_newest,
        recompute_attention=job.numerics.recompute_attention,
        compile=job.numerics.compile,
        replicas=len(job.plan.holders(index)),
        accumulation=accumulation,
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
    return versioned(stage, local.buckets, job.optimizer_settings, optimizer, updates, kind=kind)


def _accumulation(job: JobDescription, local: LocalParameters, world: Group, executor: Executor) -> Accumulation:
    if not job.numerics.exact_sums:
        return Accumulation()
    require_exact(job.plan, job.numerics.compress)
    return ExactSums(
        world,
        executor,
        buckets=local.buckets,
        tied=getattr(job.model, "tied", ()),
        microbatches=job.plan.total_microbatches,
        names=local.names,
    )


def _loss_scale(job: JobDescription) -> LossScale:
    if job.numerics.scales_loss:
        require_scalable(job.plan, job.numerics.exact_sums)
    return LossScale(dynamic=job.numerics.scales_loss)


def _gradient_sums(
    job: JobDescription, local: LocalParameters, transport: Transport, tracer: Tracer, team: TeamSums | None
) -> GradientSums:
    channels = local.channels
    algorithm = job.numerics.all_reduce
    if job.numerics.shard_optimizer:
        require_divisible(job.plan, algorithm)
        divided = [
            (bucket.stages, bucket.update_shards) for bucket in local.buckets if bucket.update_shards is not None
        ]
        shares = {
            share: Group(transport, share.holders, channels.share_sum(stages, share.copies))
            for stages, shards in divided
            for share in shards.shares
        }
        return DividedSums(shares, algorithm, tracer)
    groups = {b.stages: Group(transport, b.holders, channels.bucket_sum(b.stages)) for b in local.buckets}
    return GradientSums(groups, algorithm, tracer, team)
