"""The models that a user may give, in the form that the trainer takes."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from pipelined.api.layer_builders import LayerBuilder
from pipelined.api.sequential import LayeredModel, Loss, Sequential
from pipelined.api.trace import Traced
from pipelined.training.check_model import ModelError
from pipelined.training.model import Model

Layers = Sequential | Traced | nn.Sequential | Sequence[LayerBuilder]
"""A model as a user gives it."""


class UserModel(Model, Protocol):
    """A user's model with its loss."""

    def state_dict(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The state as the user's own module names it, from every tensor by name."""
        ...

    def release(self) -> None:
        """Free the layers of other ranks, once this rank's own are built."""
        ...


def bind(model: Layers, loss: Loss, seed: int, example: Any = None) -> UserModel:
    """A user's model with its loss.

    Args:
        seed: the seed of initial values.
        example: the inputs of one microbatch; None: layers are weighed by their parameters alone.
    Raises:
        ModelError: the model cannot be cut, or does not fit the inputs.
    """
    if isinstance(model, Traced):
        return model.bind(loss, example)
    if isinstance(model, nn.Module) and not isinstance(model, nn.Sequential):
        fact = f"a {type(model).__name__} is no row of layers"
        raise ModelError(f"{fact}; give pp.trace(model, example), or its layers as an nn.Sequential")
    return LayeredModel(model if isinstance(model, Sequential) else Sequential(model), loss, seed, example)
