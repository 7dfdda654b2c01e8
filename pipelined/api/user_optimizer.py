"""Any optimizer of torch, with any scheduler of its learning rate, as the trainer uses one."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pipelined.errors import UsageError

OptimizerBuilder = Callable[[Sequence[nn.Parameter]], Optimizer]


@dataclass
class UserOptimizer:
    """A user's own optimizer, with a scheduler of its learning rate if there is one.

    Args:
        make: builds the optimizer of these parameters; called on each rank with those that it holds.
        clip: largest global gradient norm; 0 disables clipping.
        schedule: builds the scheduler of an optimizer, whose `step()` follows every update.
    """

    make: OptimizerBuilder
    clip: float = 0.0
    schedule: Callable[[Optimizer], LRScheduler] | None = None
    _schedulers: list[LRScheduler] = field(default_factory=list)

    def build(self, parameters: Mapping[str, nn.Parameter]) -> Optimizer:
        """As in `OptimizerSettings`.

        Raises:
            UsageError: the optimizer updates other tensors than the given parameters, or is no optimizer.
        """
        if not callable(self.make):
            fact = f"`optimizer` is a {type(self.make).__name__}, and every rank needs one of its own parameters"
            raise UsageError(f"{fact}; give a function of a list of parameters that returns an optimizer of torch")
        trained = [parameter for parameter in parameters.values() if parameter.requires_grad]
        optimizer = self.make(trained) if trained else torch.optim.SGD([{"params": []}], lr=0.0)
        if not isinstance(optimizer, Optimizer):
            fact = f"`optimizer` returns a {type(optimizer).__name__}"
            raise UsageError(f"{fact}; let it return a torch optimizer of the parameters that it is given")
        own = set(map(id, trained))
        foreign = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in own]
        if foreign:
            fact = f"the optimizer updates a tensor that is not the model's (shape: {tuple(foreign[0].shape)})"
            raise UsageError(f"{fact}; build it from the parameters that `optimizer` is given")
        if self.schedule is not None:
            self._schedulers.append(self.schedule(optimizer))
        return optimizer

    def rate(self, step: int) -> None:
        """None: the optimizer's groups have rates of their own."""

    def step(self) -> None:
        """One step of every scheduler, after an update."""
        for scheduler in self._schedulers:
            scheduler.step()

    def resume(self, updates: int) -> None:
        """Bring the schedulers to where they were after some updates."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch expects an update before each step of a scheduler
            for _ in range(updates):
                self.step()
