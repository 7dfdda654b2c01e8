"""The end of a step as the planner times it: the norm, the update with the copies of masters, zeroed gradients."""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from pipelined.programs.instructions import DELAYED_UPDATE, UPDATE
from pipelined.training.job.numerics import Numerics
from pipelined.training.job.optimizer_settings import OptimizerSettings
from pipelined.training.optimizer import update
from pipelined.training.sums.bucket import squared_norms


class TimedUpdate:
    """The end of a training step of some parameters, in the dtypes and the memory of training.

    Args:
        parameters: by name, on the device of the rank.

    Attributes:
        updated: the tensors that the optimizer updates, by name: the masters of the parameters if there are some.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], settings: OptimizerSettings, numerics: Numerics):
        self._trained = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
        self._has_masters = numerics.has_masters
        self._delayed = numerics.delayed_update
        self.updated = dict(parameters)
        if self._has_masters:
            device = "cpu" if numerics.offload_optimizer else None
            for name, parameter in self._trained.items():
                self.updated[name] = nn.Parameter(parameter.detach().to(device, numerics.masters, copy=True))
        self._optimizer = settings.build(self.updated)
        self._rate = settings.rate(0)

    def pieces(self) -> list[tuple[str, Callable[[], None]]]:
        """The timed pieces of work in order, with the op of each."""
        if self._delayed:
            return [(UPDATE, lambda: self._end(lambda: None)), (DELAYED_UPDATE, self._update)]
        return [(UPDATE, lambda: self._end(self._update))]

    @torch.no_grad()
    def _end(self, do_update: Callable[[], None]) -> None:
        computed = {name: parameter for name, parameter in self._trained.items() if parameter.grad is not None}
        squared_norms({name: parameter.grad.flatten() for name, parameter in computed.items()})  # type: ignore[union-attr]
        if self._has_masters:
            for name, parameter in computed.items():
                master = self.updated[name]
                master.grad = torch.empty_like(master) if master.grad is None else master.grad
                master.grad.copy_(parameter.grad)  # type: ignore[arg-type]
        do_update()
        for name, parameter in computed.items():
            if self._has_masters:
                parameter.copy_(self.updated[name])
            parameter.grad.zero_()  # type: ignore[union-attr]

    def _update(self) -> None:
        with torch.no_grad():
            update(self._optimizer, self._rate, 0.5)
