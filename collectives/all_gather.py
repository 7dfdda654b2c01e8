"""All-gather: every rank contributes one segment of the array and ends with all segments."""

from collections.abc import Sequence
from typing import Any

from collectives.algorithms.parts.ring_pass import RingPass
from collectives.arrays import Vector, segments
from collectives.group import Group
from collectives.signature import Signature


async def all_gather(group: Group, array: Any, lengths: Sequence[int] | None = None) -> None:
    """Fill the array, in place, with the segments of all ranks.

    Shapes: the same on every rank; the segments of ranks 0, 1, .. lie one after another in the flattened array.

    Args:
        array: a contiguous numpy array or CPU torch tensor; only this rank's segment of it is read.
        lengths: the elements of each rank's segment, any of them 0; None: the array is cut evenly (`segments`). Equal
            on all ranks.
    Raises:
        ValueError: the array or the lengths are refused; nothing was sent. BrokenGroup: see `Group`. Mismatch: sizes,
        dtypes or lengths differ between ranks. TransportError: a rank or link failed. After the last two the other
        ranks' segments are partly filled.
    Cost: n - 1 steps; a rank sends the array except the segment of the next rank: (n - 1) (alpha + m/n beta).
    Source: Patarasuk, Yuan (see `collectives.algorithms.parts.ring_pass`), the second phase.
    """
    vector = Vector.of(array)
    spans = segments(len(vector), group.size, lengths)
    given = None if lengths is None else tuple(lengths)
    async with group.calling(Signature("all_gather", length=len(vector), dtype=vector.dtype, lengths=given)):
        await RingPass(group, vector, spans).all_gather()
