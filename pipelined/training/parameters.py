"""The parameters and buffers of one rank: built, tied, laid out for the gradient sums, and named for checkpoints.

A rank that holds the first and the last stage holds a tied embedding once. State is keyed by name; only this module
knows the stages of a name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import torch
from torch import nn

from pipelined.programs.bucket_names import Stages, name_buckets
from pipelined.programs.channels import Channels
from pipelined.programs.partition import partition
from pipelined.programs.plan import Plan
from pipelined.sharding.shards import TensorPart
from pipelined.training.check_model import (
    Survey,
    check_built,
    check_methods,
    holders_of_names,
    persistent_buffers,
    survey,
)
from pipelined.training.model import Model
from pipelined.training.sums.bucket import Bucket, fill_bucket
from pipelined.training.sums.division import divide
from pipelined.training.teams.model import split_model
from pipelined.training.teams.pieces import Membership

T = TypeVar("T", bound=torch.Tensor)


@dataclass(frozen=True)
class LocalParameters:
    """One rank's share of the model.

    Args:
        modules: the built part of each stage held.
        parameters: every parameter held, once, by name; frozen ones too.
        holders: for every tensor held, the ranks that hold it, ascending; the first of them owns it.
        buckets: the buckets held here; they contain no frozen parameters.
        channels: of all groups of the job.
        names: every parameter of the whole model, in the model's order.
        rank: this rank.
        team: what this rank, as a member of a team, holds of each parameter.
    """

    modules: Mapping[int, nn.Module]
    parameters: Mapping[str, nn.Parameter]
    holders: Mapping[str, tuple[int, ...]]
    buckets: tuple[Bucket, ...]
    channels: Channels
    names: tuple[str, ...]
    rank: int
    team: Membership = field(default_factory=Membership)

    @property
    def kept(self) -> dict[str, torch.Tensor]:
        """Every persistent buffer held, by name; behind a step they are equal on all holders."""
        return {name: b for module in self.modules.values() for name, b in persistent_buffers(module).items()}

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Every parameter and buffer held, by name."""
        return {**self.parameters, **self.kept}

    @property
    def state_names(self) -> list[str]:
        """The names of the parameters and buffers of which this rank is the first holder.

        Of a team each first holder of a piece counts.
        """
        return [name for name in self.tensors if self._is_first(name)]

    @property
    def updated(self) -> dict[str, nn.Parameter]:
        """What this rank updates of the parameters held, by name: all, or its rows; frozen ones too."""
        divided = {name: one for bucket in self.buckets for name, one in bucket.updated.items()}
        trained = {name for bucket in self.buckets for name in bucket.parameters}
        return {n: divided.get(n, p) for n, p in self.parameters.items() if n in divided or n not in trained}

    @property
    def rows(self) -> dict[str, tuple[int, int]]:
        """The rows [low, high) of those parameters of which this rank does not update all."""
        found = [bucket.division.rows for bucket in self.buckets if bucket.division is not None]
        return {name: rows for each in found for name, rows in each.items()}

    def of_update(self, name: str, fields: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Of a parameter's value and state what belongs to the rows that this rank updates."""
        if (rows := self.rows.get(name)) is None:
            return fields
        whole = self.parameters[name].shape
        return {field: each[slice(*rows)] if each.shape == whole else each for field, each in fields.items()}

    @property
    def saved(self) -> dict[str, TensorPart | None]:
        """What this rank writes to a checkpoint, by name; None: the whole of it.

        That is what it alone updates, or is the first holder of.
        """
        divided = {name: self.rows.get(name) for b in self.buckets if b.division is not None for name in b.updated}
        found = dict[str, TensorPart | None]()
        for name, tensor in self.tensors.items():
            part = self.team.part(name)
            if (rows := divided.get(name)) is not None:
                found[name] = (part or TensorPart.everything(tensor.shape)).rows(*rows)
            elif name in divided or (name not in self._divided and self._is_first(name)):
                found[name] = part
        return found

    def squares(self) -> dict[str, float]:
        """The squared gradient norm of what this rank counts of each parameter, by its entry; in float64.

        That is what it alone updates, or is the first holder of.
        """
        counted = [bucket.squares() for bucket in self.buckets if bucket.division or bucket.owner == self.rank]
        each = {name: square for squares in counted for name, square in squares.items()}
        return {
            self.team.entry(name): square
            for name, square in each.items()
            if name in self._divided or self.team.counts(name)
        }

    @property
    def divided(self) -> bool:
        """Whether the ranks that hold a parameter divide its update."""
        return any(bucket.division for bucket in self.buckets)

    @cached_property
    def _divided(self) -> frozenset[str]:
        """The parameters of which the holders divide the update."""
        return frozenset(name for bucket in self.buckets if bucket.division for name in bucket.parameters)

    def _is_first(self, name: str) -> bool:
        return self.holders[name][0] == self.rank and self.team.counts(name)

    def clear_gradients(self) -> None:
        for bucket in self.buckets:
            bucket.clear()


def build_local(
    model: Model,
    plan: Plan,
    rank: int,
    *,
    sequence: int,
    dtype: torch.dtype,
    device: torch.device,
    seed: int | None,
    cut: Sequence[range] = (),
    divided: bool = False,
) -> LocalParameters:
    """Build the parameters and buffers of one rank.

    Args:
        model: the whole; of a team's a rank builds its member's pieces.
        sequence: tokens per sequence, for the costs of layers.
        seed: the seed of the initial values; None leaves them unset, to be loaded.
        cut: the layers of each stage; empty: stages of costs as equal as can be.
        divided: whether the holders of a parameter divide its update.
    Raises:
        PlanError: more stages than layers.
        ModelError: the model would not train correctly.
    """
    check_methods(model)
    cut, member = cut or partition(model.costs(sequence), plan.depth), plan.member(rank)
    own: Model = model if plan.tensor == 1 else split_model(model).of_member(member)
    stages = survey(own, cut, dtype)
    modules = {stage: own.build(cut[stage], dtype, device, seed) for stage in plan.stages_of(rank)}
    for stage, module in modules.items():
        check_built(stage, module, stages[stage])
    parameters, kept = _tie(modules, _parameters), _tie(modules, persistent_buffers)
    team = _membership(model, plan, member, survey(model, cut, dtype)) if plan.tensor > 1 else Membership()
    named = name_buckets({index: list(stage.trained) for index, stage in enumerate(stages)})
    buckets = tuple(
        _bucket(plan, stages, {name: parameters[name] for name in names}, rank, team if divided else None)
        for stages, names in named.items()
        if rank in plan.holders(*stages, member=member)
    )
    everywhere = holders_of_names(stages, lambda stage: stage.everything)
    holders = {name: plan.holders(*everywhere[name], member=member) for name in (*parameters, *kept)}
    names = tuple(holders_of_names(stages, lambda stage: {**stage.trained, **stage.frozen}))
    channels = Channels(named, plan.depth, dict.fromkeys(map(team.copies, names)))
    return LocalParameters(modules, parameters, holders, buckets, channels, names, rank, team)


def _bucket(
    plan: Plan, stages: Stages, parameters: dict[str, nn.Parameter], rank: int, divided: Membership | None
) -> Bucket:
    """A bucket of these parameters; its update is divided among those that hold the same, unless `divided` is None."""
    member = plan.member(rank)
    if divided is None:
        return fill_bucket(plan, stages, parameters, member)
    copies = {name: divided.copies(name) for name in parameters}
    numbers = {each: number for number, each in enumerate(dict.fromkeys(copies.values()))}
    ordered = {name: parameters[name] for name in sorted(parameters, key=lambda name: numbers[copies[name]])}
    holders = {
        name: (each, tuple(sorted(rank for other in each[member] for rank in plan.holders(*stages, member=other))))
        for name, each in copies.items()
    }
    bucket = fill_bucket(plan, stages, ordered, member)
    bucket.division = divide(ordered, holders, stages=stages, rank=rank)
    bucket.view_updated()
    return bucket


def _membership(model: Model, plan: Plan, member: int, wholes: Sequence[Survey]) -> Membership:
    shapes = {name: shape for stage in wholes for name, shape in stage.everything.items()}
    return Membership(plan.tensor, member, split_model(model).parameters(), shapes)


def _tie(modules: Mapping[int, nn.Module], found: Callable[[nn.Module], Mapping[str, T]]) -> dict[str, T]:
    """Replace tensors of the same name in several stages by one tensor; return all by name."""
    tensors: dict[str, T] = {}
    for module in modules.values():
        for name, tensor in found(module).items():
            if name in tensors:
                replace_tensor(module, tensor, tensors[name])
            else:
                tensors[name] = tensor
    return tensors


def replace_tensor(module: nn.Module, old: torch.Tensor, new: torch.Tensor) -> None:
    """Put a parameter or buffer in every place of a module where another one is."""
    for inner in module.modules():
        held = {**inner._parameters, **inner._buffers}
        for name in [name for name, tensor in held.items() if tensor is old]:
            setattr(inner, name, new)


def register_tensor(module: nn.Module, name: str, tensor: torch.Tensor, persistent: bool = True) -> None:
    """Register a parameter or a buffer under a dotted name, in modules that are made where none are.

    Args:
        persistent: whether a state dict has it; for a buffer.
    """
    *path, leaf = name.split(".")
    for step in path:
        if step not in module._modules:
            module.add_module(step, nn.Module())
        module = module.get_submodule(step)
    if isinstance(tensor, nn.Parameter):
        module.register_parameter(leaf, tensor)
    else:
        module.register_buffer(leaf, tensor, persistent)


def _parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    return dict(module.named_parameters())
