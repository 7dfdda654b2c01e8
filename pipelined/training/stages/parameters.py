"""The parameters and buffers of one rank: built, tied, laid out for the gradient sums, and named for checkpoints.

A rank that holds the first and the last stage holds a tied embedding once. State is keyed by name; only this module
knows the stages of a name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import nn

from collectives.arrays import Range
from pipelined.programs.partition import partition
from pipelined.programs.plan import Plan
from pipelined.programs.updates.bucket_names import Stages, name_buckets
from pipelined.programs.updates.channels import Channels
from pipelined.programs.updates.step_totals import part_entry
from pipelined.sharding.shards import TensorPart
from pipelined.training.job.check_model import (
    Survey,
    check_built,
    check_methods,
    holders_of_names,
    persistent_buffers,
    survey,
)
from pipelined.training.job.description import JobDescription
from pipelined.training.job.model import Model
from pipelined.training.job.module_tensors import replace_tensor
from pipelined.training.sums.accumulation import Accumulation
from pipelined.training.sums.bucket import Bucket, clear, fill_bucket
from pipelined.training.sums.update_shards import shard_update
from pipelined.training.teams.pieces import Copies, TeamShare
from pipelined.training.teams.team_model import require_team_model

T = TypeVar("T", bound=torch.Tensor)


@dataclass(frozen=True)
class Duty:
    """The duty of one rank for a parameter or a buffer that it holds.

    Args:
        is_first: whether it is the first holder; in a team, of this piece.
        is_saved: whether it saves the tensor, and counts its gradient's norm: as the first holder, or its rows where
            the holders divide the update.
        updated: the parameter, or the rows of it that this rank updates; None: it updates nothing.
        rows: these rows, [low, high); None: it updates all or nothing.
        part: what it holds, or these rows, as a part of the whole tensor; None: all of it.
    """

    is_first: bool
    is_saved: bool
    updated: nn.Parameter | None
    rows: Range | None
    part: TensorPart | None


@dataclass(frozen=True, kw_only=True)
class LocalParameters:
    """One rank's share of the model.

    Args:
        modules: the built part of each stage held.
        parameters: every parameter held, once, by name; frozen ones too.
        holders: for every tensor held, the ranks that hold it, ascending; the first of them owns it.
        buckets: the buckets held here; they contain no frozen parameters.
        channels: of all groups of the job.
        names: every parameter of the whole model, in the model's order.
        duties: what this rank does with each parameter and buffer held, by name.
        team: what this rank, as a member of a team, holds of each parameter.
    """

    modules: Mapping[int, nn.Module]
    parameters: Mapping[str, nn.Parameter]
    holders: Mapping[str, tuple[int, ...]]
    buckets: tuple[Bucket, ...]
    channels: Channels
    names: tuple[str, ...]
    duties: Mapping[str, Duty]
    team: TeamShare = field(default_factory=TeamShare)

    @property
    def buffers(self) -> dict[str, torch.Tensor]:
        """Every persistent buffer held, by name; after a step they are equal on all holders."""
        return {name: b for module in self.modules.values() for name, b in persistent_buffers(module).items()}

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Every parameter and buffer held, by name."""
        return {**self.parameters, **self.buffers}

    @property
    def state_names(self) -> list[str]:
        """The names of the parameters and buffers of which this rank is the first holder, or of a piece in its team."""
        return [name for name, duty in self.duties.items() if duty.is_first]

    @property
    def updated(self) -> dict[str, nn.Parameter]:
        """What this rank updates of the parameters held, by name: all, or its rows; frozen ones too."""
        return {name: duty.updated for name, duty in self.duties.items() if duty.updated is not None}

    def updated_rows(self, name: str, fields: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """A parameter's value and state, cut to the rows that this rank updates."""
        if (rows := self.duties[name].rows) is None:
            return fields
        shape = self.parameters[name].shape
        return {field: value[slice(*rows)] if value.shape == shape else value for field, value in fields.items()}

    @property
    def saved(self) -> dict[str, TensorPart | None]:
        """What this rank writes to a checkpoint, by name; None: the whole of it."""
        return {name: duty.part for name, duty in self.duties.items() if duty.is_saved}

    def squares(self, accumulation: Accumulation) -> dict[str, float]:
        """The squared gradient norm of what this rank counts of each parameter, by entries of its parts; float64."""
        saved = self.saved
        return {
            part_entry(self.team.entry(name), part): square
            for bucket in self.buckets
            if not saved.keys().isdisjoint(bucket.parameters)
            for name, parts in accumulation.squares(bucket).items()
            if name in saved
            for part, square in enumerate(parts)
        }

    @property
    def divided(self) -> bool:
        """Whether the ranks that hold a parameter divide its update."""
        return any(bucket.update_shards for bucket in self.buckets)

    def clear_gradients(self) -> None:
        """Clear what was accumulated for a step that updates nothing."""
        clear(self.buckets)


def build_local(job: JobDescription, rank: int, device: torch.device) -> LocalParameters:
    """Build the parameters and buffers of one rank; in a team, its member's pieces.

    Raises:
        PlanError: more stages than layers.
        ModelError: the model would not train correctly.
    """
    check_methods(job.model)
    plan = job.plan
    dtype = job.numerics.dtype
    member = plan.member(rank)
    cut = job.cut or partition(job.model.costs(job.sequence), plan.depth)
    member_model: Model = job.model if plan.tensor == 1 else require_team_model(job.model).member_model(member)
    stages = survey(member_model, cut, dtype)
    seed = job.seed if job.fresh else None
    modules = {stage: member_model.build(cut[stage], dtype, device, seed) for stage in plan.stages_of(rank)}
    for stage, module in modules.items():
        check_built(stage, module, stages[stage])
    parameters, buffers = _tie(modules, _parameters), _tie(modules, persistent_buffers)
    team = _team_share(job.model, plan, member, survey(job.model, cut, dtype)) if plan.tensor > 1 else TeamShare()
    names_of_buckets = name_buckets({index: list(stage.trained) for index, stage in enumerate(stages)})
    team_of_updates = team if job.numerics.shard_optimizer else None
    buckets = tuple(
        _bucket(plan, bucket_stages, {name: parameters[name] for name in names}, rank, team_of_updates)
        for bucket_stages, names in names_of_buckets.items()
        if rank in plan.holders(*bucket_stages, member=member)
    )
    stages_of = holders_of_names(stages, lambda stage: stage.everything)
    holders = {name: plan.holders(*stages_of[name], member=member) for name in (*parameters, *buffers)}
    names = tuple(holders_of_names(stages, lambda stage: {**stage.trained, **stage.frozen}))
    bucket_of = {name: bucket for bucket in buckets for name in bucket.parameters}
    duties = {
        name: _duty(name, tensor, bucket_of.get(name), team, is_first=holders[name][0] == rank)
        for name, tensor in {**parameters, **buffers}.items()
    }
    return LocalParameters(
        modules=modules,
        parameters=parameters,
        holders=holders,
        buckets=buckets,
        channels=Channels(names_of_buckets, plan.depth, dict.fromkeys(map(team.copies, names))),
        names=names,
        duties=duties,
        team=team,
    )


def _duty(name: str, tensor: torch.Tensor, bucket: Bucket | None, team: TeamShare, *, is_first: bool) -> Duty:
    """What a rank does with a tensor that it holds; `is_first`: as the first of its holders outside the team."""
    is_first, part = is_first and team.counts(name), team.part(name)
    if bucket is None or bucket.update_shards is None:
        return Duty(is_first, is_first, tensor if isinstance(tensor, nn.Parameter) else None, None, part)
    updated, rows = bucket.update_shards.updated.get(name), bucket.update_shards.rows.get(name)
    if rows is not None:
        part = (part or TensorPart.everything(tensor.shape)).rows(*rows)
    return Duty(is_first, updated is not None, updated, rows, part)


def _bucket(
    plan: Plan, stages: Stages, parameters: dict[str, nn.Parameter], rank: int, team: TeamShare | None
) -> Bucket:
    """A bucket of these parameters; those that hold the same of its `team` divide its update, unless that is None."""
    member = plan.member(rank)
    if team is None:
        return fill_bucket(plan, stages, parameters, member)
    names_by_copies = dict[Copies, list[str]]()
    for name in parameters:
        names_by_copies.setdefault(team.copies(name), []).append(name)
    ordered = {name: parameters[name] for names in names_by_copies.values() for name in names}
    holders = dict[str, tuple[Copies, tuple[int, ...]]]()
    for copies, names in names_by_copies.items():
        ranks = sorted(rank for peer in copies[member] for rank in plan.holders(*stages, member=peer))
        holders |= dict.fromkeys(names, (copies, tuple(ranks)))
    bucket = fill_bucket(plan, stages, ordered, member)
    bucket.update_shards = shard_update(ordered, holders, stages=stages, rank=rank)
    bucket.attach_gradient_views()
    return bucket


def _team_share(model: Model, plan: Plan, member: int, whole_stages: Sequence[Survey]) -> TeamShare:
    shapes = {name: shape for stage in whole_stages for name, shape in stage.everything.items()}
    return TeamShare(plan.tensor, member, require_team_model(model).parameters(), shapes)


def _tie(modules: Mapping[int, nn.Module], tensors_of: Callable[[nn.Module], Mapping[str, T]]) -> dict[str, T]:
    """Replace tensors of the same name in several stages by one tensor; return all by name."""
    tensors: dict[str, T] = {}
    for module in modules.values():
        for name, tensor in tensors_of(module).items():
            if name in tensors:
                replace_tensor(module, tensor, tensors[name])
            else:
                tensors[name] = tensor
    return tensors


def _parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    return dict(module.named_parameters())
