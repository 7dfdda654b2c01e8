"""All-gather: every rank contributes one segment of the array and ends with all segments."""

from typing import Any

from collectives.arrays import Vector
from collectives.group import Group
from collectives.ring import RingPass
from collectives.signature import Signature


async def all_gather(group: Group, array: Any) -> None:
    """Fill the array, in place, with the segments of all ranks.

    Shapes: the same on every rank; of the flattened array, rank r contributes elements `segment(length, size, r)`.

    Args:
        array: a contiguous numpy array or CPU torch tensor; only this rank's segment of it is read.
    Raises:
        ValueError: the array is refused; nothing was sent. BrokenGroup: see `Group`. TransportError: a rank or link
        failed; the other ranks' segments are partly filled.
    Cost: n - 1 steps; a rank sends the array except the segment of the next rank: (n - 1) (alpha + m/n beta).
    Source: Patarasuk, Yuan (see `collectives.ring`), the second phase.
    """
    vector = Vector.of(array)
    async with group.calling(Signature("all_gather", length=len(vector), dtype=vector.dtype)):
        await RingPass(group, vector).all_gather()
