"""The stages of one rank, built from the description of its job: those of a whole worker, or of a member of a team."""

from collections.abc import Mapping
from typing import NamedTuple

import torch

from collectives.algorithms import may_share_memory
from pipelined.actors.device.executor import Executor
from pipelined.programs.partition import partition
from pipelined.sharding import MeshGroups
from pipelined.training.exchange.skips import NO_SKIPS, Skips
from pipelined.training.job.description import JobDescription
from pipelined.training.job.model import HandsOn
from pipelined.training.stages.parameters import LocalParameters
from pipelined.training.stages.stage import Stage
from pipelined.training.stages.team_stage import TeamStage
from pipelined.training.sums.accumulation import Accumulation
from pipelined.training.teams.team_model import require_team_model
from transports import Transport


class BuiltStages(NamedTuple):
    """The stages of a rank, and what belongs to all of them.

    Args:
        stages: by number.
        skips: the tensors that go past stages.
        gathered: weights that the stages keep gathered during a step; None: they keep none.
    """

    stages: Mapping[int, Stage | TeamStage]
    skips: Skips
    gathered: dict[str, torch.Tensor] | None


def build_stages(
    job: JobDescription, local: LocalParameters, executor: Executor, accumulation: Accumulation
) -> BuiltStages:
    """Build the stages of a worker of one rank."""
    stages = {index: _stage(job, local, index, executor, accumulation) for index in local.modules}
    return BuiltStages(stages, _skips(job), None)


def build_team_stages(
    job: JobDescription, local: LocalParameters, executor: Executor, transport: Transport
) -> BuiltStages:
    """Build a member's pieces of the stages. A team sends every tensor to the next stage, so there are no skips."""
    gathered: dict[str, torch.Tensor] | None = {} if require_team_model(job.model).shards_weights else None
    stages = {index: _team_stage(job, local, index, executor, transport, gathered=gathered) for index in local.modules}
    return BuiltStages(stages, NO_SKIPS, gathered)


def _skips(job: JobDescription) -> Skips:
    """The tensors that go past stages: none past compiled ones, which take and give tensors alone."""
    if job.numerics.compile or not isinstance(job.model, HandsOn):
        return NO_SKIPS
    cut = job.cut or partition(job.model.costs(job.sequence), job.plan.depth)
    return Skips.of([job.model.handed_on(layers, job.numerics.dtype) for layers in cut[1:-1]])


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


def _team_stage(
    job: JobDescription,
    local: LocalParameters,
    index: int,
    executor: Executor,
    transport: Transport,
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
