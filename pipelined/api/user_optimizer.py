"""Any optimizer of torch, with any scheduler of its learning rate, as the trainer uses one."""

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from pipelined.errors import UsageError, refuse_below, user_code

OptimizerBuilder = Callable[[Sequence[nn.Parameter]], Optimizer]
SchedulerBuilder = Callable[[Optimizer], LRScheduler]


@dataclass
class UserOptimizer:
    """A user's own optimizer, with a scheduler of its learning rate if there is one.

    Args:
        make: builds the optimizer of these parameters; called on each rank with those that it holds.
        clip: largest global gradient norm; 0 disables clipping.
        scheduler: builds the scheduler of an optimizer, whose `step()` follows every step.
    """

    make: OptimizerBuilder
    clip: float = 0.0
    scheduler: SchedulerBuilder | None = None
    _scheduled_optimizers: list["_ScheduledOptimizer"] = field(default_factory=list)

    def __post_init__(self) -> None:
        refuse_below(0, "clip", self.clip)
        if not callable(self.make):
            what = "an optimizer already" if isinstance(self.make, Optimizer) else "no function"
            remedy = "give a function of a list of parameters that returns an optimizer of torch"
            raise UsageError(f"`optimizer` is {what} ({type(self.make).__name__}); every rank builds its own: {remedy}")
        if not (self.scheduler is None or callable(self.scheduler)):
            kind = type(self.scheduler).__name__
            fact = f"`lr_scheduler` is of type {kind}, and every rank builds one for its optimizer"
            raise UsageError(f"{fact}; give a function of an optimizer that returns a scheduler")

    def build(self, parameters: Mapping[str, nn.Parameter]) -> Optimizer:
        """As in `OptimizerSettings`.

        If every parameter is frozen, it builds an optimizer of one placeholder without a gradient, so that its learning
        rate is that of the other ranks.

        Raises:
            UsageError: `make` or `scheduler` raises, or the optimizer updates other tensors than the given parameters,
                is no optimizer, or needs a closure.
        """
        trained_parameters = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
        parameter_list = list(trained_parameters.values()) or [nn.Parameter(torch.zeros(1))]
        names = _list_parameters(list(trained_parameters))
        remedy = "correct it: it is called with a list of parameters, and returns an optimizer of torch"
        with user_code(f"`optimizer` for {names}", remedy):
            optimizer = self.make(parameter_list)
        if not isinstance(optimizer, Optimizer):
            fact = f"`optimizer` returns a value of type {type(optimizer).__name__}"
            raise UsageError(f"{fact}; let it return a torch optimizer of the parameters that it is given")
        _refuse_closure(optimizer)
        ids = set(map(id, parameter_list))
        foreign = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in ids]
        if foreign:
            fact = f"the optimizer updates a tensor that is not the model's (shape: {tuple(foreign[0].shape)})"
            raise UsageError(f"{fact}; build it from the parameters that `optimizer` is given")
        if self.scheduler is not None:
            self._scheduled_optimizers.append(_ScheduledOptimizer(optimizer, self.scheduler, names))
        return optimizer

    def rate(self, step: int) -> None:
        """Always None: the learning rates stay as the optimizer's groups set them."""

    def step(self) -> None:
        """One step of every scheduler, after a step of training."""
        for scheduled in self._scheduled_optimizers:
            scheduled.step()

    def resume(self, updates: int) -> None:
        """Bring the schedulers to where they were after some updates, whatever steps they have made."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch expects an update before each step of a scheduler
            for scheduled in self._scheduled_optimizers:
                scheduled.restart()
            for _ in range(updates):
                self.step()


class _ScheduledOptimizer:
    """An optimizer with the scheduler of its learning rate, which can begin again.

    Args:
        names: its parameters, in words.
    Raises:
        UsageError: the scheduler cannot be made, or needs more than the number of steps.
    """

    def __init__(self, optimizer: Optimizer, make_scheduler: SchedulerBuilder, names: str):
        self._optimizer, self._make_scheduler = optimizer, make_scheduler
        self._purpose = f"for the {type(optimizer).__name__} of {names}"
        self._first_settings = [copy.deepcopy(_settings(group)) for group in optimizer.param_groups]
        self._make()
        if isinstance(self._scheduler, ReduceLROnPlateau):
            fact = "ReduceLROnPlateau follows a metric, and a scheduler here follows the number of steps alone"
            raise UsageError(f"{fact}; give another one, such as CosineAnnealingLR or StepLR")

    def restart(self) -> None:
        """Set the groups to their values before the first scheduler, and make a scheduler anew."""
        for group, first_settings in zip(self._optimizer.param_groups, self._first_settings, strict=True):
            parameters = group["params"]
            group.clear()
            group.update(params=parameters, **copy.deepcopy(first_settings))
        self._make()

    def step(self) -> None:
        """One step of the scheduler. Raises UsageError: it raises."""
        self._steps += 1
        what = f"step {self._steps} of `lr_scheduler` ({type(self._scheduler).__name__}) {self._purpose}"
        with user_code(what, "correct it, or train fewer steps"):
            self._scheduler.step()

    def _make(self) -> None:
        self._steps = 0
        remedy = "correct it: it is called with an optimizer, and returns a scheduler of torch"
        with user_code(f"`lr_scheduler` {self._purpose}", remedy):
            self._scheduler = self._make_scheduler(self._optimizer)


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a group of parameters, such as its learning rate."""
    return {name: value for name, value in group.items() if name != "params"}


def _refuse_closure(optimizer: Optimizer) -> None:
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        fact = f"{type(optimizer).__name__} needs a closure that computes the loss again, which no step here does"
        raise UsageError(f"{fact}; choose an optimizer without a closure")


def _list_parameters(names: Sequence[str]) -> str:
    """Parameters by their number, and the first and the last one."""
    if len(names) < 2:
        return f"1 parameter ({names[0]})" if names else "no trained parameter"
    return f"{len(names)} parameters ({names[0]} to {names[-1]})"
