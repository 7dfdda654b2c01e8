"""The parameters and buffers one rank holds: built, tied, laid out for the gradient sums, and named for checkpoints.

A rank that holds the first and the last stage holds a tied embedding once. State is keyed by name; only this module
knows which stage a name lies in.

Gradients lie in buckets: one flat buffer for all parameters that the same stages hold. A parameter belongs to every
stage that has its name: most to one, a tied embedding to the first and the last. So a bucket is named by its stages. It
is complete on a rank after the last backward of each of them, and is summed over every rank that holds any of them;
each adds its own sum once. All ranks derive the same buckets, in the same order, from the plan and the names alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import nn

from pipelined.programs.bucket_names import Stages, name_buckets
from pipelined.programs.partition import partition
from pipelined.programs.plan import Plan
from pipelined.training.check_model import check_built, check_methods, holders_of_names, persistent_buffers, survey
from pipelined.training.model import Model

T = TypeVar("T", bound=torch.Tensor)


@dataclass
class Bucket:
    """Parameters that are summed together.

    Args:
        stages: those that hold every parameter in here, ascending.
        holders: the ranks that hold any of these stages, ascending; the first of them owns the parameters.
        parameters: by global name, in the model's order.
        gradient: all their gradients, flat; each parameter's `.grad` is a view of it.
    """

    stages: Stages
    holders: tuple[int, ...]
    parameters: dict[str, nn.Parameter]
    gradient: torch.Tensor

    @property
    def owner(self) -> int:
        return self.holders[0]

    def move(self, memory: np.ndarray) -> None:
        """Move the gradient, with its values, to other memory of as many bytes.

        Raises:
            ValueError: the memory has another size.
        """
        if memory.nbytes != self.gradient.nbytes:
            fact = f"memory of another size than the gradient (memory: {memory.nbytes}, gradient: "
            raise ValueError(f"{fact}{self.gradient.nbytes} bytes); allocate as many bytes")
        moved = torch.from_numpy(memory).view(self.gradient.dtype)
        self.gradient = moved.copy_(self.gradient)
        view_gradients(self.parameters, moved)


def fill_bucket(plan: Plan, stages: Stages, parameters: dict[str, nn.Parameter]) -> Bucket:
    """Give these parameters one flat gradient, zero at first."""
    first = next(iter(parameters.values()))
    gradient = torch.zeros(sum(p.numel() for p in parameters.values()), dtype=first.dtype, device=first.device)
    view_gradients(parameters, gradient)
    return Bucket(stages, plan.holders(*stages), parameters, gradient)


def view_gradients(parameters: Mapping[str, nn.Parameter], gradient: torch.Tensor) -> None:
    """Make each parameter's `.grad` its part of this flat tensor, in order."""
    start = 0
    for parameter in parameters.values():
        parameter.grad = gradient[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()


@dataclass(frozen=True)
class LocalParameters:
    """One rank's share of the model.

    Args:
        modules: a built part for each stage held.
        parameters: every parameter held, once, by name; frozen ones too.
        holders: for every tensor held the ranks that hold it, ascending; the first answers for it.
        buckets: what is summed together, those held here; no frozen parameter is in one.
        channels: the number of every bucket of the job, the same on all ranks.
        names: every parameter of the whole model, in the model's order.
        rank: whose this is.
    """

    modules: Mapping[int, nn.Module]
    parameters: Mapping[str, nn.Parameter]
    holders: Mapping[str, tuple[int, ...]]
    buckets: tuple[Bucket, ...]
    channels: Mapping[Stages, int]
    names: tuple[str, ...]
    rank: int

    @property
    def kept(self) -> dict[str, torch.Tensor]:
        """Every persistent buffer held, by name.

        Each holder writes its own: the running statistics of a batch norm are of the microbatches it computed.
        """
        return {name: b for module in self.modules.values() for name, b in persistent_buffers(module).items()}

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Every parameter and buffer held, by name."""
        return {**self.parameters, **self.kept}

    @property
    def owned(self) -> dict[str, nn.Parameter]:
        """The parameters this rank answers for: each belongs to exactly one rank of the job."""
        return {name: p for name, p in self.parameters.items() if self.holders[name][0] == self.rank}

    @property
    def state_names(self) -> list[str]:
        """What of this rank a checkpoint holds: parameters and buffers of which it is the first holder."""
        return [name for name in self.tensors if self.holders[name][0] == self.rank]

    def squares(self) -> dict[str, float]:
        """The squared gradient norm of each owned parameter, in float64."""
        norms = {
            name: torch.linalg.vector_norm(p.grad, dtype=torch.float64)
            for bucket in self.buckets
            if bucket.owner == self.rank
            for name, p in bucket.parameters.items()
        }
        return {name: float(norm) ** 2 for name, norm in norms.items()}

    def clear_gradients(self) -> None:
        for bucket in self.buckets:
            bucket.gradient.zero_()


def build_local(
    model: Model,
    plan: Plan,
    rank: int,
    *,
    sequence: int,
    dtype: torch.dtype,
    device: torch.device,
    seed: int | None,
) -> LocalParameters:
    """Build what a rank holds.

    Args:
        sequence: tokens a sequence, for the layers' costs.
        seed: of the initial values; None leaves them unset, to be loaded.
    Raises:
        PlanError: more stages than layers.
        ModelError: the model would not train right.
    """
    check_methods(model)
    cut = partition(model.costs(sequence), plan.depth)
    stages = survey(model, cut, dtype)
    modules = {stage: model.build(cut[stage], dtype, device, seed) for stage in plan.stages_of(rank)}
    for stage, module in modules.items():
        check_built(stage, module, stages[stage])
    parameters, kept = _tie(modules, _parameters), _tie(modules, persistent_buffers)
    named = name_buckets({index: list(stage.trained) for index, stage in enumerate(stages)})
    buckets = tuple(
        fill_bucket(plan, stages, {name: parameters[name] for name in names})
        for stages, names in named.items()
        if rank in plan.holders(*stages)
    )
    channels = {stages: number for number, stages in enumerate(named)}
    everywhere = holders_of_names(stages, lambda stage: stage.everything)
    holders = {name: plan.holders(*everywhere[name]) for name in (*parameters, *kept)}
    names = tuple(holders_of_names(stages, lambda stage: {**stage.trained, **stage.frozen}))
    return LocalParameters(modules, parameters, holders, buckets, channels, names, rank)


def _tie(modules: Mapping[int, nn.Module], found: Callable[[nn.Module], Mapping[str, T]]) -> dict[str, T]:
    """Make tensors of one name in several stages one tensor; return all by name."""
    tensors: dict[str, T] = {}
    for module in modules.values():
        for name, tensor in found(module).items():
            if name in tensors:
                path, _, leaf = name.rpartition(".")
                setattr(module.get_submodule(path), leaf, tensors[name])
            else:
                tensors[name] = tensor
    return tensors


def _parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    return dict(module.named_parameters())
