"""The parameters and buffers of one rank: built, tied, laid out for the gradient sums, and named for checkpoints.

A rank that holds the first and the last stage holds a tied embedding once. State is keyed by name; only this module
knows the stages of a name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import nn

from pipelined.programs.bucket_names import Stages, name_buckets
from pipelined.programs.partition import partition
from pipelined.programs.plan import Plan
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
        channels: the number of every bucket of the job, the same on all ranks.
        names: every parameter of the whole model, in the model's order.
        rank: this rank.
        team: what this rank, as a member of a team, holds of each parameter.
    """

    modules: Mapping[int, nn.Module]
    parameters: Mapping[str, nn.Parameter]
    holders: Mapping[str, tuple[int, ...]]
    buckets: tuple[Bucket, ...]
    channels: Mapping[Stages, int]
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
        """The names that this rank writes to a checkpoint: parameters and buffers of which it is the first holder.

        Of a team each first holder of a piece writes it.
        """
        return [name for name in self.tensors if self.holders[name][0] == self.rank and self.team.counts(name)]

    def squares(self) -> dict[str, float]:
        """The squared gradient norm of each owned parameter, or piece of one, by its entry; in float64."""
        owned = [bucket.squares() for bucket in self.buckets if bucket.owner == self.rank]
        each = {name: square for squares in owned for name, square in squares.items()}
        return {self.team.entry(name): square for name, square in each.items() if self.team.counts(name)}

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
) -> LocalParameters:
    """Build the parameters and buffers of one rank.

    Args:
        model: the whole; of a team's a rank builds its member's pieces.
        sequence: tokens per sequence, for the costs of layers.
        seed: the seed of the initial values; None leaves them unset, to be loaded.
        cut: the layers of each stage; empty: stages of costs as equal as can be.
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
    named = name_buckets({index: list(stage.trained) for index, stage in enumerate(stages)})
    buckets = tuple(
        fill_bucket(plan, stages, {name: parameters[name] for name in names}, member)
        for stages, names in named.items()
        if rank in plan.holders(*stages, member=member)
    )
    channels = {stages: number for number, stages in enumerate(named)}
    everywhere = holders_of_names(stages, lambda stage: stage.everything)
    holders = {name: plan.holders(*everywhere[name], member=member) for name in (*parameters, *kept)}
    names = tuple(holders_of_names(stages, lambda stage: {**stage.trained, **stage.frozen}))
    team = _membership(model, plan, member, survey(model, cut, dtype)) if plan.tensor > 1 else Membership()
    return LocalParameters(modules, parameters, holders, buckets, channels, names, rank, team)


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
