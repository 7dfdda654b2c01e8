"""Half-width floats summed in float32: widened block by block, reduced by any algorithm, rounded once.

    array     [ block 0 | block 1 | .. ]      float16 or bfloat16
                  |  ^
            widen v  | round
    block      [ float32 ]    the algorithm's own messages, or windows, carry float32

A block is one piece of the group, so that extra memory does not grow with the array.
"""

import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np

from collectives.arrays import Range, Vector, pieces
from collectives.group import Group
from collectives.reduction import Reduction

WIDTHS = {"float32": ("bfloat16", "float16", "float32")}
"""The dtypes that each accumulation accepts."""
WIDENING_LANE = -1
"""The lane of the group's workspace for a block; rings use the lanes of their strides, which are positive."""


def check(accumulate: str | None, vector: Vector) -> bool:
    """Whether the vector has to be widened.

    Raises:
        ValueError: an unknown accumulation (the known are listed), or one that does not accept this dtype.
    """
    if accumulate is None:
        return False
    if accumulate not in WIDTHS:
        fact = f"unknown accumulation {accumulate!r}"
        raise ValueError(f"{fact}; known: {', '.join(WIDTHS)}, or None for the array's own")
    if vector.dtype not in WIDTHS[accumulate]:
        dtypes = ", ".join(WIDTHS[accumulate])
        raise ValueError(f"no {accumulate} accumulation of {vector.dtype} (it is for {dtypes}); leave it out")
    return vector.dtype != accumulate


async def reduce_widened(
    run: Callable[[Group, Vector, Reduction], Awaitable[None]], group: Group, vector: Vector, reduction: Reduction
) -> None:
    """Run the algorithm on every block in float32, and round its result.

    Cost: that of the algorithm on a float32 array, once for each block; one more piece of extra memory.
    """
    float32 = Vector.of(np.empty(0, np.float32))
    in_float32 = Reduction(reduction.op, float32.elements)
    for low, high in blocks(group.workspace.piece, len(vector)):
        block = group.workspace.scratch(float32, high - low, WIDENING_LANE)
        _copy(vector.elements[low:high], block.elements)
        await run(group, block, in_float32)
        _copy(block.elements, vector.elements[low:high])


def blocks(piece: int, length: int) -> Iterator[Range]:
    """The ranges that are widened at a time: as many float32 elements as fit into a piece, at least one."""
    return pieces(0, length, max(piece // 4, 1))


def _copy(source: Any, into: Any) -> None:
    """Convert one flat array into another, rounding to nearest even; either may be a torch tensor."""
    if isinstance(source, np.ndarray) and isinstance(into, np.ndarray):
        return np.copyto(into, source, casting="same_kind")
    as_tensor = sys.modules["torch"].as_tensor
    as_tensor(into).copy_(as_tensor(source))
