"""Reduce-scatter: each rank ends with one reduced segment of the array."""

from collections.abc import Sequence
from typing import Any

from collectives.algorithms import REDUCE_SCATTER
from collectives.arrays import Vector, segments
from collectives.group import Group
from collectives.group.signature import Signature
from collectives.reduction import Reduction


async def reduce_scatter(
    group: Group, array: Any, op: str = "sum", lengths: Sequence[int] | None = None, algorithm: str = "auto"
) -> Any:
    """Reduce the arrays of all ranks and keep this rank's segment of the result.

    Shapes: the same on every rank; the segments of ranks 0, 1, .. lie one after another in the flattened array.

    Args:
        array: a contiguous numpy array or CPU torch tensor, reduced in place; outside the kept segment it then holds
            partial sums.
        op: "sum", "mean" or "max".
        lengths: the elements of each rank's segment, any of them 0; None: the array is cut evenly (`segments`). Equal
            on all ranks.
        algorithm: the name of an algorithm (`collectives.algorithms.REDUCE_SCATTER`); equal on all ranks.
    Returns:
        The kept segment, a flat view of `array`'s memory; `all_gather` of the array then completes it on all ranks.
    Raises:
        ValueError: the op, array, lengths or algorithm is refused; nothing was sent.
        BrokenGroup: see `Group`.
        Mismatch: sizes, dtypes, ops or lengths differ between ranks; the array holds partial sums.
        TransportError: a rank or link failed; the same.
    Cost: see each algorithm; each rank sends the array but its own segment, the least that is possible.
    """
    vector = Vector.of(array)
    reduction = Reduction(op, vector.elements)
    ranges = segments(len(vector), group.size, lengths)
    REDUCE_SCATTER.check(algorithm)
    requested_lengths = None if lengths is None else tuple(lengths)
    async with group.call(
        Signature("reduce_scatter", op, len(vector), vector.dtype, algorithm, lengths=requested_lengths)
    ):
        runner = await REDUCE_SCATTER.resolve(algorithm, group, vector.nbytes)
        await runner.run(group, vector, ranges, reduction)
    low, high = ranges[group.rank]
    return array.reshape(-1)[low:high]
