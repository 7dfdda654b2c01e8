"""The transport's own all-reduce, where it has one (MPI_Allreduce under `mpi`)."""

import math

from collectives.arrays import Vector
from collectives.group import Group
from collectives.reduction import Reduction
from transports.wire.arrays import Block


async def all_reduce(group: Group, vector: Vector, reduction: Reduction) -> None:
    """Let the transport reduce; a mean is divided here, on every rank alike.

    Raises:
        ValueError: the transport has no collectives of its own, or none for this dtype.
    Cost: the transport's own, and a meeting before.
    """
    own = group.native
    if own is None:
        name = type(group.transport).__name__
        raise ValueError(f"this transport has no all-reduce of its own (transport: {name}); choose another algorithm")
    await group.barrier()  # a library compares nothing: other lengths or dtypes elsewhere would be written over
    if group.size > 1 and len(vector):
        block = Block(vector.dtype, (len(vector),), vector.data)
        await own.all_reduce(block, "max" if reduction.op == "max" else "sum")
    reduction.finish(vector.elements, group.size)


def cost(size: int, nbytes: int, alpha: float, beta: float, gamma: float) -> float:
    """Unknown, so infinite: `auto` chooses only what it can price and every transport can do."""
    return math.inf
