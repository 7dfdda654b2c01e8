"""The settings of an optimizer, as a job's description has them."""

from collections.abc import Mapping
from typing import Protocol

from torch import nn
from torch.optim import Optimizer


class OptimizerSettings(Protocol):
    """The settings of an optimizer, as the trainer uses them."""

    @property
    def clip(self) -> float:
        """Largest global gradient norm; 0 disables clipping."""

    def build(self, parameters: Mapping[str, nn.Parameter]) -> Optimizer:
        """An optimizer of those of these parameters that are not frozen."""

    def rate(self, step: int) -> float | None:
        """The learning rate of a step, counted from 0; None: the optimizer has its own."""
