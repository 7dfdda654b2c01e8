"""Allocate: an array in memory that all ranks of the group share."""

import sys
from typing import Any

import numpy as np

from collectives.algorithms.parts.dissemination import dissemination_barrier
from collectives.arrays import Vector
from collectives.group import Group
from collectives.group.signature import Signature


async def allocate(group: Group, length: int, dtype: Any = "float32") -> np.ndarray:
    """Allocate an array of zeros on every rank of the group, in shared memory if the ranks run on one node.

    `shared` and `auto` all-reduce a long array (or a part of one) from this memory in place, without a copy; all ranks
    must then pass the same part of their arrays. The memory is freed after both the group and the array are gone.
    Where the ranks share no memory the array lies in ordinary memory.

    Shapes: (length,).

    Args:
        dtype: a numpy dtype that a collective can send. For a dtype that numpy lacks, allocate bytes and view them with
            torch (`torch.from_numpy(array).view`).
    Raises:
        ValueError: no such dtype, or no such length; nothing was sent.
        Mismatch: ranks request different lengths or dtypes.
        TransportError: a rank or link failed.
    Cancelled: after a cancelled sum, other ranks write to the array until their calls fail too; do not use it again.
    Cost: a barrier, and once two messages from each rank to the first and back. Each rank maps the others' arrays.
    """
    try:
        kind = np.dtype(dtype)
    except TypeError as error:
        raise ValueError(f"no dtype of numpy (got: {dtype!r}); pass for example float32") from error
    Vector.of(np.empty(0, kind))  # refuses what a collective cannot send
    max_length = sys.maxsize // kind.itemsize
    if not hasattr(length, "__index__") or not 0 <= length <= max_length:
        raise ValueError(f"no length of an array (length: {length!r}, at most: {max_length} of {kind}); pass 0 or more")
    async with group.call(Signature("allocate", length=length, dtype=str(kind))):
        nbytes = length * kind.itemsize
        # compare the lengths before anything is mapped: a rank must not write beyond a shorter array
        await dissemination_barrier(group)
        if group.size > 1 and nbytes and await group.shared.open() is not None:
            if (array := await group.shared.allocate(nbytes)) is not None:
                return array.view(kind)
    return np.zeros(int(length), kind)
