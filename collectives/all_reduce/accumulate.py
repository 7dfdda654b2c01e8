"""Half-width floats summed in float32: widened block by block, reduced by any algorithm, rounded once.

    array     [ block 0 | block 1 | .. ]      float16 or bfloat16
                  |  ^
            widen v  | round
    block      [ float32 ]    the algorithm's own messages, or windows, carry float32

The one rule: a block is a piece of the group, so that extra memory does not grow with the array. Knows no algorithm.
"""

import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np

from collectives.arrays import Vector
from collectives.group import Group
from collectives.partition import Range, pieces
from collectives.reduction import Reduction

WIDTHS = {"float32": ("bfloat16", "float16", "float32")}
"""What sums may be kept in, and of which dtypes."""
LANE = -1
"""The group's memory for a block: rings take the lanes of their strides."""


def check(accumulate: str | None, vector: Vector) -> bool:
    """Whether the vector has to be widened.

    Raises:
        ValueError: no such accumulation, or none for this dtype; the known are listed.
    """
    if accumulate is None:
        return False
    if accumulate not in WIDTHS:
        raise ValueError(
            f"unknown accumulation {accumulate!r}; known: {', '.join(WIDTHS)}, or None for the array's own"
        )
    if vector.dtype not in WIDTHS[accumulate]:
        dtypes = ", ".join(WIDTHS[accumulate])
        raise ValueError(f"no {accumulate} accumulation of {vector.dtype} (it is for {dtypes}); leave it out")
    return vector.dtype != accumulate


async def all_reduce(
    run: Callable[[Group, Vector, Reduction], Awaitable[None]], group: Group, vector: Vector, reduction: Reduction
) -> None:
    """Run the algorithm on every block in float32, and round what it gives.

    Cost: the algorithm's for an array of float32, once for each block; extra memory is one piece more.
    """
    float32 = Vector.of(np.empty(0, np.float32))
    in_float32 = Reduction(reduction.op, float32)
    for low, high in blocks(group.workspace.piece, len(vector)):
        block = group.workspace.scratch(float32, high - low, LANE)
        _copy(vector.elements[low:high], block.elements)
        await run(group, block, in_float32)
        _copy(block.elements, vector.elements[low:high])


def blocks(piece: int, length: int) -> Iterator[Range]:
    """The elements that are widened at a time: as many as fit into a piece in float32, or one."""
    return pieces(0, length, max(piece // 4, 1))


def _copy(source: Any, into: Any) -> None:
    """Convert one flat array into another, to the nearest and of two the even; either may be torch's."""
    if isinstance(source, np.ndarray) and isinstance(into, np.ndarray):
        return np.copyto(into, source, casting="same_kind")
    as_tensor = sys.modules["torch"].as_tensor
    as_tensor(into).copy_(as_tensor(source))
