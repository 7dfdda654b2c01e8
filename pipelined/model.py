"""What the runtime must know of a model: a row of layers, what each costs, and how to build a range of them.

State is keyed by parameter name, never by stage number. A name that appears in two ranges (a tied embedding) is one
parameter with several holders.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn

from pipelined.noise import Noise


class Part(Protocol):
    """A built range of layers, an `nn.Module` whose parameters bear their global names."""

    def __call__(self, x: torch.Tensor, noise: Noise | None) -> torch.Tensor:
        """Forward one microbatch. The first part takes (B, T) ids; the last gives logits. noise None: evaluate."""
        ...


class Model(Protocol):
    """A model that can be cut between any two layers."""

    @property
    def layers(self) -> int:
        """How many layers there are to share out (GPT-2: its blocks, the embedding, and the head)."""
        ...

    def costs(self, sequence: int) -> list[float]:
        """Relative cost of a forward through each layer (floating-point operations a token)."""
        ...

    def build(self, layers: range, dtype: torch.dtype, device: torch.device | str, seed: int | None) -> nn.Module:
        """Build a `Part`. Initial values depend on (seed, parameter name) alone; seed None leaves them unset.

        Names: `{name: parameter}` of the module's `named_parameters()` are the global names.
        """
        ...

    def loss(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean loss of one microbatch, a scalar."""
        ...

    def shape_of(self, layer: int, microbatch: int, sequence: int) -> tuple[int, ...]:
        """Shape of what flows into this layer."""
        ...

    def identity(self) -> Mapping[str, Any]:
        """What must agree for a checkpoint to fit this model."""
        ...
