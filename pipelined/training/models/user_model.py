"""The models that a user may give, in the form that the trainer takes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from pipelined.errors import UsageError, whole
from pipelined.programs.plan import Plan
from pipelined.training.job.check_model import ModelError
from pipelined.training.job.model import Model
from pipelined.training.models.layer_builders import LayerBuilder
from pipelined.training.models.sequential import LayeredModel, Loss, Sequential
from pipelined.training.models.split.split_row import SplitRow
from pipelined.training.models.traced_model import Traced

Layers = Sequential | Traced | nn.Sequential | Iterable[LayerBuilder]
"""A model as a user gives it."""


class UserModel(Model, Protocol):
    """A user's model with its loss."""

    def state_dict(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The state as the user's own module names it, from every tensor by name."""

    def check_inputs(self, inputs: Any) -> None:
        """Refuse inputs that the model cannot take, as far as that is known; raises ModelError."""

    def release(self) -> None:
        """Free the layers of other ranks, once this rank's own are built."""


@dataclass(frozen=True)
class TeamRequest:
    """The ranks of a worker that split a model.

    Args:
        ranks: T.
        layout: `data`, `megatron` (None), factors by layer, or `auto`, which is searched.
        rows: of a microbatch.
        microbatches, depth, dtype: of the plan and of its parameters, by which a layout is searched.
    """

    ranks: int
    layout: str | None
    rows: int
    microbatches: int = 1
    depth: int = 1
    dtype: torch.dtype = torch.float32

    @classmethod
    def of(cls, plan: Plan, layout: str | None, dtype: torch.dtype) -> "TeamRequest":
        """The ranks of a plan's workers, with the plan's own layout where it has one.

        Raises:
            UsageError: the plan has another layout.
        """
        if plan.layout and layout not in (None, plan.layout):
            fact = f"the plan has another layout (layout: {layout}, the plan's: {plan.layout})"
            raise UsageError(f"{fact}; leave layout out")
        return cls(plan.tensor, plan.layout or layout, plan.rows, plan.microbatches, plan.depth, dtype)

    def __post_init__(self) -> None:
        if self.ranks == 1 and self.layout is not None:
            raise UsageError(f"one rank splits nothing (layout: {self.layout}, tensor: 1); give tensor=, too")


def bind(model: Layers, loss: Loss, seed: int, example: Any = None, team: TeamRequest | None = None) -> UserModel:
    """A user's model with its loss.

    Args:
        seed: the seed of initial values.
        example: the inputs of one microbatch; None: layers are weighed by their parameters alone.
        team: the ranks of a worker; None: one.
    Raises:
        ModelError: the model cannot be cut, or does not fit the inputs; the loss is not a function.
        UsageError: the team cannot split it.
    """
    seed = whole("seed", seed)
    if not -(1 << 63) <= seed < 1 << 64:
        raise UsageError(f"seed is {seed}, which torch's generators do not take; give one of 64 bits")
    if isinstance(loss, type):
        raise ModelError(f"the loss is the class {loss.__name__}, not a function; give {loss.__name__}()")
    if not callable(loss):
        raise ModelError(f"the loss is a {type(loss).__name__}, not a function of (output, targets); give one")
    if isinstance(model, Traced):
        if team and team.ranks > 1:
            raise ModelError("a traced module is not split over ranks; give its layers as pp.Sequential, or tensor 1")
        return model.bind(loss, example)
    if isinstance(model, nn.Module) and not isinstance(model, nn.Sequential):
        fact = f"the model must be a row of layers (got: {type(model).__name__})"
        raise ModelError(f"{fact}; give pp.trace(model, example), or its layers as an nn.Sequential")
    if not isinstance(model, Sequential | nn.Sequential | Iterable):
        raise ModelError(f"the model must be a list of callables that build layers (got: {type(model).__name__})")
    row = model if isinstance(model, Sequential) else Sequential(model)
    layered = LayeredModel(row, loss, seed, example)
    return layered if team is None or team.ranks == 1 else SplitRow(layered, example, **vars(team))
