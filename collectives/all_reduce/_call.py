"""The way in: takes the group's turn, then runs the algorithm asked for. Knows no algorithm."""

from typing import Any

from collectives._group import Group
from collectives._reduction import Reduction
from collectives._vector import Vector
from collectives.all_reduce._known import known


async def all_reduce(group: Group, array: Any, op: str = "sum", algorithm: str = "auto") -> None:
    """Reduce the arrays of all ranks of the group, in place; every rank ends with the same bits.

    Shapes: the same on every rank, 0 elements allowed.

    Args:
        array: a contiguous numpy array or CPU torch tensor.
        op: "sum", "mean" (a sum divided once, at the end) or "max" (a NaN anywhere wins).
        algorithm: the name of a file in this package; equal on all ranks.
    Raises:
        ValueError: the algorithm, the op or the array is refused; nothing was sent and the group is as before.
        BrokenGroup: an earlier collective of the group was left half done.
        TransportError: a rank or link failed; the array holds partial sums and the group is broken.
    Cancelled: as after a TransportError; the other ranks wait until the transport tells them.
    Cost: see each algorithm. With t seconds for m bytes on n ranks, algbw is m/t and busbw is 2(n-1)/n m/t.
    """
    run = known(algorithm).all_reduce
    vector = Vector.of(array)
    reduction = Reduction(op, vector)
    async with group.turn:
        await run(group, vector, reduction)
