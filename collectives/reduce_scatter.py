"""Reduce-scatter: each rank ends with one reduced segment of the array."""

from typing import Any

from collectives.arrays import Vector, segment
from collectives.group import Group
from collectives.reduction import Reduction
from collectives.ring import RingPass
from collectives.signature import Signature


async def reduce_scatter(group: Group, array: Any, op: str = "sum") -> Any:
    """Reduce the arrays of all ranks and keep this rank's segment of the result.

    Shapes: the same on every rank; of the flattened array, rank r keeps elements `segment(length, size, r)`.

    Args:
        array: a contiguous numpy array or CPU torch tensor, reduced in place; outside the kept segment it then holds
            partial sums.
        op: "sum", "mean" or "max".
    Returns:
        The kept segment, a flat view of `array`'s memory; `all_gather` of the array then completes it on all ranks.
    Raises:
        ValueError: the op or the array is refused; nothing was sent. BrokenGroup: see `Group`. TransportError: a rank
        or link failed; the array holds partial sums.
    Cost: n - 1 steps; a rank sends the array except its own segment: (n - 1) (alpha + m/n beta + m/n gamma).
    Source: Patarasuk, Yuan (see `collectives.ring`), the first phase.
    """
    vector = Vector.of(array)
    reduction = Reduction(op, vector)
    async with group.calling(Signature("reduce_scatter", op, len(vector), vector.dtype)):
        await RingPass(group, vector).reduce_scatter(reduction)
    low, high = segment(len(vector), group.size, group.rank)
    return array.reshape(-1)[low:high]
