"""What one rank holds, counted as it trains: parameters, gradients, optimizer state, and activations while they live.

The one rule: storages are counted as they are found in use, each once; nothing is worked out from a model's sizes or a
schedule, so that a count may exceed what either promises.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from pipelined.noise import Noise
from pipelined.stage import Alive, Stage
from pipelined.trainer import Trainer

Storages = dict[int, int]
"""Bytes by address."""


@dataclass
class Kept:
    """What a rank keeps between forwards and backwards, over all its stages.

    Args:
        counted: storages that are counted elsewhere: the parameters.

    Attributes:
        alive: the storages of every microbatch now alive in a stage.
        peak_bytes: the most bytes ever alive at once.
        peak_microbatches: the most microbatches ever alive at once.
    """

    counted: Storages
    alive: dict[tuple[int, Alive], Storages] = field(default_factory=dict)
    peak_bytes: int = 0
    peak_microbatches: int = 0
    _bytes: int = 0

    def begin(self, which: tuple[int, Alive]) -> None:
        """A microbatch comes alive in a stage."""
        self.alive[which] = {}
        self.peak_microbatches = max(self.peak_microbatches, len(self.alive))

    def add(self, which: tuple[int, Alive], tensor: torch.Tensor) -> torch.Tensor:
        """A tensor is kept for this microbatch; returns it."""
        storage = tensor.untyped_storage()
        address, mine = storage.data_ptr(), self.alive[which]
        if address not in mine and address not in self.counted:
            mine[address] = storage.nbytes()
            self._bytes += storage.nbytes()
            self.peak_bytes = max(self.peak_bytes, self._bytes)
        return tensor

    def end(self, which: tuple[int, Alive]) -> None:
        """Its backward is done."""
        self._bytes -= sum(self.alive.pop(which).values())


@dataclass(frozen=True)
class CountedStage:
    """A stage that writes down what its autograd graphs and its own table keep."""

    stage: Stage
    kept: Kept

    def forward(self, which: Alive, x: Any, noise: Noise, targets: Any = None) -> torch.Tensor:
        key = self.stage.index, which
        self.kept.begin(key)
        with self._watching(key):
            output = self.stage.forward(which, x, noise, targets)
        for tensor in self.stage.alive[which]:
            self.kept.add(key, tensor)
        return output

    def backward(self, which: Alive, gradient: Any, scale: float, noise: Noise, targets: Any = None) -> Any:
        with self._watching((self.stage.index, which)):  # a recomputed forward is alive too
            back = self.stage.backward(which, gradient, scale, noise, targets)
        self.kept.end((self.stage.index, which))
        return back

    def _watching(self, key: tuple[int, Alive]) -> saved_tensors_hooks:
        return saved_tensors_hooks(lambda tensor: self.kept.add(key, tensor), lambda tensor: tensor)


def count_activations(trainer: Trainer) -> Kept:
    """Count from now on what this rank's stages keep alive."""
    kept = Kept(storages(trainer.replica.parameters.values()))
    stages: Mapping[int, Any] = {index: CountedStage(stage, kept) for index, stage in trainer.seat.stages.items()}
    trainer.seat = replace(trainer.seat, stages=stages)
    return kept


def storages(tensors: Iterable[torch.Tensor]) -> Storages:
    """The distinct storages under these tensors."""
    found = (tensor.untyped_storage() for tensor in tensors)
    return {storage.data_ptr(): storage.nbytes() for storage in found}


def state_bytes(parameters: Iterable[nn.Parameter], optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes of parameters, of their gradients, and of what the optimizer keeps, as they lie in memory now."""
    values = list(parameters)
    groups = {
        "parameters": values,
        "gradients": [p.grad for p in values if p.grad is not None],
        "optimizer": [t for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t)],
    }
    return {name: sum(storages(tensors).values()) for name, tensors in groups.items()}


def resident(field: str) -> int:
    """Bytes of this process in memory, from Linux's /proc: VmRSS now, VmHWM at the most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))
