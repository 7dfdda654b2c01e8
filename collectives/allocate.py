"""Allocate: an array where all ranks of the group can reach it. The one rule: it is an array like any other."""

from typing import Any

import numpy as np

from collectives.group import Group


async def allocate(group: Group, length: int, dtype: Any = "float32") -> np.ndarray:
    """An array of zeros for every rank of the group, in memory that they share, if they run on one node.

    A long array that lies in it is all-reduced by `shared` and by `auto` where it is, without a copy; all ranks must
    then pass the same part of theirs. It lives as long as the group or the array. Where ranks share no memory it is
    ordinary memory.

    Shapes: (length,).

    Args:
        dtype: numpy's; for what numpy lacks allocate bytes, and let torch view them (`torch.from_numpy(array).view`).
    Raises:
        ValueError: a negative length; nothing was sent.
        Mismatch: ranks ask for different lengths or dtypes. TransportError: a rank or link failed.
    Cancelled: a sum that is cancelled leaves the others writing to its array until they learn of that; drop it.
    Cost: once, two messages from each rank to the first and back. Each rank maps the others' arrays.
    """
    if length < 0:
        raise ValueError(f"an array of a negative length (length: {length}); name how many elements it is to have")
    kind = np.dtype(dtype)
    async with group.calling(f"allocate {length} {kind}"):
        nbytes = length * kind.itemsize
        if group.size > 1 and nbytes and await group.shared.open() is not None:
            await group.barrier()  # whoever maps less than another writes must learn it first
            if (array := await group.shared.allocate(nbytes)) is not None:
                return array.view(kind)
    return np.zeros(length, kind)
