"""Where a message's bytes come to rest: the receiver's own arrays, or fresh memory.

The one rule: an array that does not fit is refused before a byte moves, so that the message stays available. Knows
blocks and layouts, never the transport that fills them.
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from transports.errors import WireError
from transports.wire.arrays import Block
from transports.wire.frames import Layout


def destinations(into: Sequence[Any] | None) -> tuple[Block, ...] | None:
    """View the arrays that a receiver lends, before anything is awaited; None stays None.

    Raises:
        ValueError: one of them has gaps, another machine's byte order or a dtype without a wire form, or is read-only.
    """
    return None if into is None else tuple([_destination(at, array) for at, array in enumerate(into)])


def landing(layouts: Sequence[Layout], into: Sequence[Block] | None = None) -> tuple[Block, ...]:
    """Blocks to be filled: over the memory of those in `into`, or fresh memory where it is None.

    Raises:
        ValueError: `into` has another number of blocks, or one of them another size.
    """
    if into is None:
        return tuple([Block.empty(layout.dtype, layout.shape) for layout in layouts])
    if len(into) != len(layouts):
        raise ValueError(f"`into` does not fit the message (arrays: {len(into)}, blocks: {len(layouts)})")
    return tuple([_fitted(at, layout, into[at].data) for at, layout in enumerate(layouts)])


def fill(blocks: Sequence[Block], source: Sequence[Block]) -> None:
    """Copy the bytes of `source` into `blocks` of the same sizes."""
    for block, other in zip(blocks, source, strict=True):
        block.data[:] = other.data


def copied(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """The same blocks in memory of their own."""
    fresh = landing([Layout(block.dtype, block.shape) for block in blocks])
    fill(fresh, blocks)
    return fresh


def _destination(at: int, array: Any) -> Block:
    try:
        block = Block.of(array)
    except WireError as error:
        raise ValueError(f"into[{at}] cannot be filled: {error}") from error
    if not _is_solid(array):
        raise ValueError(f"into[{at}] is not contiguous in this machine's byte order, so it cannot be filled in place")
    if block.data.readonly:
        raise ValueError(f"into[{at}] is read-only, so it cannot be filled in place")
    return block


def _fitted(at: int, layout: Layout, data: memoryview) -> Block:
    if data.nbytes != layout.nbytes:
        raise ValueError(f"into[{at}] does not fit the block (into: {data.nbytes} bytes, block: {layout.nbytes})")
    return Block(layout.dtype, layout.shape, data)


def _is_solid(array: Any) -> bool:
    """Whether `Block.of` views the array's own memory rather than a copy."""
    if isinstance(array, np.ndarray):
        return array.flags.c_contiguous and array.dtype.isnative
    if isinstance(array, (Block, bytes, bytearray, memoryview)):
        return True
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        return False
    return array.is_contiguous() and not array.is_conj() and not array.is_neg()
