"""The state that an optimizer keeps of each parameter, as the fields of a checkpoint."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from pipelined.training.optimizer.config import FusedAdamW
from pipelined.training.sums.grids import GRID

VALUE = "value"
"""The field of a parameter's value."""
MOMENTS = ("exp_avg", "exp_avg_sq")
"""AdamW's tensors, each with the shape of its parameter; the step count is a separate scalar."""
VERSION_PREFIX = "version"
"""Prefix of a field with an older version: `version-1` holds a parameter's value one update before."""
NUMBER = "number-"
"""The prefix of a number in the state of an optimizer, saved as a tensor of no dimensions."""


class OptimizerState:
    """The state of any optimizer of torch, as checkpoints hold it.

    Args:
        optimizer: has as state of a parameter tensors and numbers by name, and `step` for the number of its updates.
    """

    def __init__(self, optimizer: Optimizer):
        self.optimizer = optimizer

    @classmethod
    def of(cls, optimizer: Optimizer) -> "OptimizerState":
        """The state of an optimizer: of `OptimizerConfig`'s AdamW, or of any other one."""
        return AdamWState(optimizer) if isinstance(optimizer, FusedAdamW) else cls(optimizer)

    @property
    def updates(self) -> int:
        """The number of updates made, including those before the state was restored."""
        return max((int(state.get("step", 0)) for state in self.optimizer.state.values()), default=0)

    def fields(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """A parameter's value and state, by name; numbers under the prefix `number-`. Frozen: only the value."""
        value = {VALUE: parameter.detach()}
        return {**value, **self._state_to_save(parameter)} if parameter.requires_grad else value

    def restore(self, parameter: torch.Tensor, fields: Mapping[str, torch.Tensor], updates: int) -> None:
        """Restore the result of `fields` after this many updates; a parameter without saved state gets new state.

        Fields of others, such as older versions, are left out.
        """
        with torch.no_grad():
            parameter.copy_(fields[VALUE])
        self.optimizer.state.pop(parameter, None)
        names = [name for name in fields if name not in (VALUE, GRID) and not name.startswith(VERSION_PREFIX)]
        state_fields = {name: fields[name] for name in names}
        if parameter.requires_grad and (state := self._restore(parameter, state_fields, updates)):
            self.optimizer.state[parameter] = state

    def _state_to_save(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """The state of a trained parameter."""
        state = self.optimizer.state.get(parameter, {})
        tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
        numbers = {name: value for name, value in state.items() if isinstance(value, bool | int | float)}
        return {**tensors, **{NUMBER + name: torch.tensor(value) for name, value in numbers.items()}}

    def _restore(self, parameter: torch.Tensor, saved: Mapping[str, torch.Tensor], updates: int) -> dict[str, Any]:
        """The state of a trained parameter from what was saved of it; empty where nothing was."""
        return {
            name.removeprefix(NUMBER): value.item() if name.startswith(NUMBER) else _copy(name, value, parameter)
            for name, value in saved.items()
        }


class AdamWState(OptimizerState):
    """The state of `OptimizerConfig`'s AdamW: its moments, zeros before the first update."""

    def _state_to_save(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        state = self.optimizer.state.get(parameter, {})
        return {name: state.get(name, torch.zeros_like(parameter)) for name in MOMENTS}

    def _restore(self, parameter: torch.Tensor, saved: Mapping[str, torch.Tensor], updates: int) -> dict[str, Any]:
        if not set(MOMENTS) <= saved.keys():
            return {}
        moments = {name: saved[name].to(parameter.device, parameter.dtype).clone() for name in MOMENTS}
        return {"step": torch.tensor(float(updates), device=parameter.device), **moments}


def has_shape_of_parameter(field: str) -> bool:
    """Whether a tensor of the state has the shape of its parameter. An optimizer may keep others, such as a count."""
    return field == VALUE or field in MOMENTS or field.startswith(VERSION_PREFIX)


def _copy(name: str, saved: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor of an optimizer's state where its parameter is; a count of steps stays on the host."""
    return saved.clone() if name == "step" else saved.to(parameter.device, copy=True)
