"""What the runtime must know of a model: a row of layers, what each costs, and how to build a range of them.

State is keyed by parameter name, never by stage number. A name that appears in two ranges (a tied embedding) is one
parameter with several holders, if the model says that it is tied.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn

from pipelined.training.keyed_random import KeyedRandom


class Part(Protocol):
    """A built range of layers, an `nn.Module` whose parameters and buffers bear their global names.

    It may have frozen parameters, or none at all. Torch's own dropout works, with masks that depend on where the model
    is cut; those of `KeyedRandom.dropout` do not. Persistent buffers (a batch norm's running statistics) are saved and
    loaded as the first holder has them; every other replica keeps those of the microbatches that it computed.
    """

    def __call__(self, x: torch.Tensor, random: KeyedRandom | None) -> torch.Tensor:
        """Forward one microbatch. The first part takes (B, T) ids; the last gives logits. random None: evaluate."""
        ...


class Model(Protocol):
    """A model that can be cut between any two layers; see `pipelined.training.check_model` for what is refused.

    Attributes:
        tied: names that may be in several stages, each one parameter with several holders; it may be left out.
    """

    @property
    def layers(self) -> int:
        """How many layers there are to share out (GPT-2: its blocks, the embedding, and the head)."""
        ...

    def costs(self, sequence: int) -> list[float]:
        """Relative cost of a forward through each layer (floating-point operations a token)."""
        ...

    def build(self, layers: range, dtype: torch.dtype, device: torch.device | str, seed: int | None) -> nn.Module:
        """Build a `Part`. Initial values depend on (seed, parameter name) alone; seed None leaves them unset.

        Names: `{name: parameter}` of the module's `named_parameters()` are the global names. On the meta device the
            module has the same tensors as elsewhere, frozen and not.
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
