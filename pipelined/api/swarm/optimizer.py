"""A user's own optimizer for one stage of a swarm, with its state by parameter name.

A peer that joins receives the state from another peer, so its names, dtypes and shapes must be known before the first
update. They are found by one update of zeros on copies of the parameters.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from pipelined.api.user_optimizer import UserOptimizer
from pipelined.errors import UsageError
from pipelined.random.keyed_random import KeyedRandom
from pipelined.random.torch_random import TorchRandom
from pipelined.swarm.stages.exact_optimizers import COUNT

VALUE = "value"
"""The field of a parameter itself."""


class UserStageOptimizer:
    """The parameters of one stage, with an optimizer of torch; see `pipelined.swarm.stages.training.StageOptimizer`.

    Random numbers that the optimizer draws are keyed by (seed, step, stage), so that every peer draws the same.

    Args:
        parameters: by name; all are trained.
        settings: makes the settings of the optimizer of such parameters.
        seed: of the training.
        stage: number of the stage.
    Raises:
        UsageError: every peer must compute the same update from the same state, and with this optimizer it cannot.
    Cost: memory of the optimizer's state; while it is made, of its state and the parameters once more.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], settings: Callable[[], UserOptimizer], seed: int, stage: int
    ):
        self._parameters = parameters
        self._make = settings
        self._seed = seed
        self._key = f"optimizer {stage}"
        self._random = TorchRandom(next(iter(parameters.values())).device)
        self._fields = _fields(parameters, settings())
        self._begin(0)

    def apply(self, step: int, gradients: Sequence[torch.Tensor]) -> None:
        """Update every parameter by the optimizer, then step the scheduler; the learning rates are the optimizer's own.

        Every peer with the same torch and the same kind of processor computes the same bits.
        """
        for parameter, gradient in zip(self._parameters.values(), gradients, strict=True):
            parameter.grad = gradient.clone()
        self._random.run(self._optimizer.step, KeyedRandom(self._seed, step, 0), self._key)
        self._optimizer.zero_grad(set_to_none=True)
        self._settings.step()
        self._updates += 1

    def state(self) -> Mapping[str, torch.Tensor]:
        """Every parameter as NAME/value, the optimizer's state of it as NAME/FIELD, and the count of updates.

        Before the first update the fields are zeros, and `load` ignores them.
        """
        state = dict[str, torch.Tensor]()
        for name, parameter in self._parameters.items():
            state[f"{name}/{VALUE}"] = parameter.detach().cpu()
            kept_state = self._optimizer.state[parameter] if self._updates else {}
            for field, zero in self._fields[name].items():
                state[f"{name}/{field}"] = _as_tensor(kept_state.get(field, zero)).detach().cpu()
        return {**state, COUNT: torch.tensor(self._updates)}

    @torch.no_grad()
    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Load a state with the names and layouts of `state`."""
        for name, parameter in self._parameters.items():
            parameter.copy_(state[f"{name}/{VALUE}"])
        self._begin(int(state[COUNT]))
        for name, parameter in self._parameters.items() if self._updates else ():
            self._optimizer.state[parameter] = {
                field: _field_like(state[f"{name}/{field}"], zero) for field, zero in self._fields[name].items()
            }

    def _begin(self, updates: int) -> None:
        """A new optimizer, with its scheduler as it is after this many updates."""
        self._settings = self._make()
        self._updates = updates
        self._optimizer = self._settings.build(self._parameters)
        self._settings.resume(updates)


def _fields(parameters: Mapping[str, nn.Parameter], settings: UserOptimizer) -> dict[str, dict[str, Any]]:
    """What an optimizer keeps of each parameter: zeros of the kinds and shapes that it has after an update."""
    copies = {name: nn.Parameter(parameter.detach().clone()) for name, parameter in parameters.items()}
    optimizer = settings.build(copies)
    kind = type(optimizer).__name__
    first_values = _group_values(optimizer)
    for copy in copies.values():
        copy.grad = torch.zeros_like(copy)
    try:
        optimizer.step()
    except TypeError as error:
        fact = f"{kind} cannot update parameters from their gradients alone ({error})"
        raise UsageError(f"{fact}; choose an optimizer without a closure for a swarm") from error
    if changes := [key for key, value in _group_values(optimizer).items() if first_values.get(key, value) != value]:
        fact = f"{kind} keeps state in its parameter groups ({changes[0]}), which peers of a swarm do not exchange"
        raise UsageError(f"{fact}; choose an optimizer that keeps its state by parameter")
    return {name: _zero_state(kind, name, optimizer.state[copy]) for name, copy in copies.items()}


def _zero_state(kind: str, name: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Zeros like the state of one parameter. Entries that are None stay None, and are no field."""
    fields = dict[str, Any]()
    for field, value in state.items():
        if isinstance(value, torch.Tensor):
            fields[field] = torch.zeros_like(value)
        elif isinstance(value, int | float):
            fields[field] = type(value)(0)
        elif value is not None:
            fact = f"{kind} keeps a {type(value).__name__} of {name} ({field}), which peers of a swarm cannot exchange"
            raise UsageError(f"{fact}; choose an optimizer that keeps tensors and numbers")
    return fields


def _group_values(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """The settings of every parameter group, as text."""
    groups = enumerate(optimizer.param_groups)
    return {f"{index}.{key}": repr(value) for index, group in groups for key, value in group.items() if key != "params"}


def _as_tensor(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.float64)


def _field_like(tensor: torch.Tensor, template: Any) -> Any:
    """A field as the optimizer keeps it: a tensor of its own on the same device, or a number."""
    return tensor.clone().to(template.device) if isinstance(template, torch.Tensor) else type(template)(tensor.item())
