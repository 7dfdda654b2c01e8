"""The models that a user may give, in the form that the trainer takes."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from pipelined.api.model.layer_builders import LayerBuilder
from pipelined.api.model.sequential import LayeredModel, Loss, Sequential
from pipelined.api.model.trace import Traced
from pipelined.training.check_model import ModelError
from pipelined.training.model import Model

Layers = Sequential | Traced | nn.Sequential | Iterable[LayerBuilder]
"""A model as a user gives it."""


class UserModel(Model, Protocol):
    """A user's model with its loss."""

    def state_dict(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The state as the user's own module names it, from every tensor by name."""
        ...

    def check_inputs(self, inputs: Any) -> None:
        """Refuse inputs that the model cannot take; raises ModelError. A row of layers takes any."""
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
        ModelError: the model cannot be cut, or does not fit the inputs; the loss is no function.
    """
    if isinstance(loss, type):
        raise ModelError(f"the loss is the class {loss.__name__}, not a function; give {loss.__name__}()")
    if not callable(loss):
        raise ModelError(f"the loss is a {type(loss).__name__}, not a function of (output, targets); give one")
    if isinstance(model, Traced):
        return model.bind(loss, example)
    if isinstance(model, nn.Module) and not isinstance(model, nn.Sequential):
        fact = f"a {type(model).__name__} is no row of layers"
        raise ModelError(f"{fact}; give pp.trace(model, example), or its layers as an nn.Sequential")
    if not isinstance(model, Sequential | nn.Sequential | Iterable):
        raise ModelError(f"a {type(model).__name__} is no row of layers; give a list of callables that build layers")
    return LayeredModel(model if isinstance(model, Sequential) else Sequential(model), loss, seed, example)
