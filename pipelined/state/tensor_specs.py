"""What is known of a state without its values: dtype and shape of each tensor. No torch."""

from collections.abc import Mapping
from typing import Any

from transports import Block

TensorSpecs = Mapping[str, tuple[str, tuple[int, ...]]]
"""Dtype and shape of every tensor, by name."""


def specs_of(state: Mapping[str, Any]) -> TensorSpecs:
    """Dtype and shape of every tensor of a state."""
    blocks = {name: Block.of(value) for name, value in state.items()}
    return {name: (block.dtype, block.shape) for name, block in blocks.items()}
