"""Where a message's bytes come to rest: the receiver's own arrays, or fresh memory.

The one rule: an array that does not fit is refused before a byte moves, so that the message stays available. Knows
blocks and layouts, never the transport that fills them.
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from transports._blocks import Block
from transports._wire import Layout


def landing(layouts: Sequence[Layout], into: Sequence[Any] | None = None) -> tuple[Block, ...]:
    """Blocks to be filled: views of the arrays in `into`, or fresh memory where it is None.

    Raises:
        ValueError: `into` has another number of arrays, or one of them another size, gaps, or is read-only.
    """
    if into is None:
        return tuple([Block.empty(layout.dtype, layout.shape) for layout in layouts])
    if len(into) != len(layouts):
        raise ValueError(f"`into` does not fit the message (arrays: {len(into)}, blocks: {len(layouts)})")
    return tuple([_view(place, layout, into[place]) for place, layout in enumerate(layouts)])


def fill(blocks: Sequence[Block], source: Sequence[Block]) -> None:
    """Copy the bytes of `source` into `blocks` of the same sizes."""
    for block, other in zip(blocks, source, strict=True):
        block.data[:] = other.data


def copied(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """The same blocks in memory of their own."""
    fresh = landing([Layout(block.dtype, block.shape) for block in blocks])
    fill(fresh, blocks)
    return fresh


def _view(place: int, layout: Layout, array: Any) -> Block:
    if not _is_solid(array):
        raise ValueError(f"into[{place}] is not contiguous, so it cannot be filled in place")
    data = Block.of(array).data
    if data.readonly:
        raise ValueError(f"into[{place}] is read-only, so it cannot be filled in place")
    if data.nbytes != layout.nbytes:
        raise ValueError(f"into[{place}] does not fit the block (into: {data.nbytes} bytes, block: {layout.nbytes})")
    return Block(layout.dtype, layout.shape, data)


def _is_solid(array: Any) -> bool:
    if isinstance(array, np.ndarray):
        return array.flags.c_contiguous
    if isinstance(array, (Block, bytearray, memoryview)):
        return True
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor) and array.is_contiguous()
