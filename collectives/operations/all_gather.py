"""All-gather: every rank contributes one segment of the array and ends with all segments."""

from collections.abc import Sequence
from typing import Any

from collectives.algorithms import ALL_GATHER
from collectives.arrays import Vector, segments
from collectives.group import Group
from collectives.group.signature import Signature


async def all_gather(group: Group, array: Any, lengths: Sequence[int] | None = None, algorithm: str = "auto") -> None:
    """Fill the array, in place, with the segments of all ranks.

    Shapes: the same on every rank; the segments of ranks 0, 1, .. lie one after another in the flattened array.

    Args:
        array: a contiguous numpy array or CPU torch tensor; only this rank's segment of it is read.
        lengths: the elements of each rank's segment, any of them 0; None: the array is cut evenly (`segments`). Equal
            on all ranks.
        algorithm: the name of an algorithm (`collectives.algorithms.ALL_GATHER`); equal on all ranks.
    Raises:
        ValueError: the array, the lengths or the algorithm is refused; nothing was sent.
        BrokenGroup: see `Group`.
        Mismatch: sizes, dtypes or lengths differ between ranks; the other ranks' segments are partly filled.
        TransportError: a rank or link failed; the same.
    Cost: see each algorithm; each rank receives the array but its own segment, the least that is possible.
    """
    vector = Vector.of(array)
    ranges = segments(len(vector), group.size, lengths)
    ALL_GATHER.check(algorithm)
    requested_lengths = None if lengths is None else tuple(lengths)
    signature = Signature("all_gather", "", len(vector), vector.dtype, algorithm, lengths=requested_lengths)
    async with group.call(signature):
        runner = await ALL_GATHER.resolve(algorithm, group, vector.nbytes)
        await runner.run(group, vector, ranges)
