"""Reduce arrays that all ranks of the group map: nothing is copied into a window first.

    meeting    all arrays hold what is to be reduced
               the rank r reduces segment r of all of them, and writes it to all of them, a piece in the cache at a time
    meeting    all segments are there

The one rule: between the two meetings each byte of every array is read and written by one rank alone.
"""

from collections.abc import Sequence
from time import perf_counter

from collectives.all_reduce.window_layout import Places
from collectives.arrays import Vector
from collectives.call import Call
from collectives.partition import Range, pieces, segment
from collectives.reduction import Reduction
from transports.base import Shared

AT_ONCE = 512 << 10
"""Bytes of all arrays together that are reduced at a time: they fit a core's cache."""
TURN_S = 1e-3
"""The loop gets a turn after so many seconds at the latest."""


async def in_place(call: Call, places: Places, arrays: Sequence[Vector], reduction: Reduction) -> None:
    """Meet, reduce this rank's segment, meet.

    Args:
        arrays: every rank's, in the group's order.
    Cost: two meetings; each byte of an array is read once from memory, and written once. No extra memory.
    """
    places.greet(call)
    await places.memory.meet()
    places.compare(call)
    await _reduce(places.memory, arrays, segment(len(arrays[0]), places.size, places.rank), reduction)
    await places.memory.meet()


async def _reduce(memory: Shared, arrays: Sequence[Vector], span: Range, reduction: Reduction) -> None:
    """In the order of ranks, into the first rank's array, and from there to the others'."""
    first, *others = arrays
    due = perf_counter() + TURN_S
    for low, high in pieces(*span, max(1, AT_ONCE // len(arrays) // first.itemsize)):
        into = first.elements[low:high]
        for other in others:
            reduction.combine(into, other.elements[low:high], into)
        reduction.finish(into, len(arrays))
        for other in others:
            other.bytes(low, high)[:] = first.bytes(low, high)
        if perf_counter() > due:
            await memory.pause()
            due = perf_counter() + TURN_S
