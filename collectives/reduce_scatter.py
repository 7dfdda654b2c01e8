"""Reduce-scatter: each rank ends with one reduced segment of the array."""

from collections.abc import Sequence
from typing import Any

from collectives.algorithms.parts.ring_pass import RingPass
from collectives.arrays import Vector, segments
from collectives.group import Group
from collectives.reduction import Reduction
from collectives.signature import Signature


async def reduce_scatter(group: Group, array: Any, op: str = "sum", lengths: Sequence[int] | None = None) -> Any:
    """Reduce the arrays of all ranks and keep this rank's segment of the result.

    Shapes: the same on every rank; the segments of ranks 0, 1, .. lie one after another in the flattened array.

    Args:
        array: a contiguous numpy array or CPU torch tensor, reduced in place; outside the kept segment it then holds
            partial sums.
        op: "sum", "mean" or "max".
        lengths: the elements of each rank's segment, any of them 0; None: the array is cut evenly (`segments`). Equal
            on all ranks.
    Returns:
        The kept segment, a flat view of `array`'s memory; `all_gather` of the array then completes it on all ranks.
    Raises:
        ValueError: the op, the array or the lengths are refused; nothing was sent. BrokenGroup: see `Group`. Mismatch:
        sizes, dtypes, ops or lengths differ between ranks. TransportError: a rank or link failed. After the last two
        the array holds partial sums.
    Cost: n - 1 steps; a rank sends the array except its own segment: (n - 1) (alpha + m/n beta + m/n gamma).
    Source: Patarasuk, Yuan (see `collectives.algorithms.parts.ring_pass`), the first phase.
    """
    vector = Vector.of(array)
    reduction = Reduction(op, vector)
    spans = segments(len(vector), group.size, lengths)
    given = None if lengths is None else tuple(lengths)
    async with group.calling(Signature("reduce_scatter", op, len(vector), vector.dtype, lengths=given)):
        await RingPass(group, vector, spans).reduce_scatter(reduction)
    low, high = spans[group.rank]
    return array.reshape(-1)[low:high]
