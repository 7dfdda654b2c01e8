"""Shared: all-reduce through memory that the ranks share, where the transport offers it.

To copy in is to copy into this rank's window, where the others read it; to copy out, from their windows.

Short array: every rank lends all of it; after one barrier every rank reduces the arrays of all ranks. Long array on two
ranks: the same, chunk by chunk, because neither rank reads more than if they divided the work, and one barrier per
chunk is enough. Long array on more ranks, or on two ranks with a dtype that is slow to reduce: the work is divided. In
each chunk rank r reduces segment r and lends all other segments, so each byte is copied in once and out once. Chunks
stay in the cores' caches, and several are in progress between two barriers:

    between barriers     0        1         2         3       ...
    lends the parts of   chunk 0  chunk 1   chunk 2   chunk 3      others' segments, copied into this rank's window
    reduces its part of           chunk 0   chunk 1   chunk 2      from all windows into its window and its array
    takes the parts of                      chunk 0   chunk 1      others' reduced segments, copied out

A long array made by `allocate` already lies in shared memory and is reduced there (`_in_place`): between two barriers
rank r reduces segment r of all arrays and writes the result to all of them, one piece in the cache at a time. So each
byte of every array is read and written by one rank.

Data written into a window between two barriers is read between the next two, and may be overwritten after those; so
each window has two places, used in turn. Where the work is divided, a place has one slot per segment: a rank lends in
the slots of the other ranks, and its own slot holds its reduced segment.

Operands are reduced in the order of ranks, each segment by one rank or by all in the same way, so all ranks end with
the same bits.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter

from collectives.all_reduce.window_layout import WindowLayout
from collectives.arrays import Range, Vector, pieces, segment
from collectives.call import Call
from collectives.group import Group
from collectives.reduction import Reduction
from transports.base import SharedWindows

SHORT = 1 << 20
"""Bytes of other ranks' arrays up to which a rank reduces them all itself: this costs less than a second barrier."""
CHUNK = 512 << 10
"""Bytes that each of two ranks lends at a time: together with the arrays they stay in a core's cache (1 MiB took 1.7
times as long for arrays of 64 MiB, 1.6 times for 16 MiB). Chunks divided by more ranks are larger: each costs a
barrier."""
HALF = 2
"""Bytes of an element up to which its reduction takes longer than its copies, so that two ranks divide the work."""
LONG = 512 << 10
"""Bytes from which an array in shared memory is reduced in place."""
AT_ONCE = 512 << 10
"""Bytes, over all arrays together, that are reduced at a time; they fit into a core's cache."""
TURN_S = 1e-3
"""Seconds after which a long reduction pauses, so that the event loop can run."""


async def all_reduce(group: Group, vector: Vector, reduction: Reduction) -> None:
    """Lend, reduce, and, where the work is divided, take.

    Raises:
        ValueError: the group's ranks share no memory.
    Cost: short array: one barrier; two ranks: one barrier per chunk; in both cases a rank copies the array once and
        reduces all of it. Divided work: one barrier per chunk and two more; a rank copies 2(n-1)/n of the array and
        reduces (n-1)/n. Array in shared memory: two barriers. Nothing is sent. Extra memory is the rank's window.
    Source: Graham, Shipman, "MPI Support for Multi-core Architectures: Optimized Shared Memory Collectives", section 3.
    """
    memory = group.shared.memory or await group.shared.open()
    if memory is None:
        name = type(group.transport).__name__
        fact = f"the ranks of this group share no memory (transport: {name}, ranks: {group.ranks})"
        raise ValueError(f"{fact}; choose another algorithm")
    length, others = len(vector), group.size - 1
    if not others or not length:
        return reduction.finish(vector.elements, group.size)
    call = group.calls.running
    places = group.workspace.cached(
        (WindowLayout, vector.dtype, type(vector.elements)), lambda: WindowLayout(group, memory, vector)
    )
    if vector.nbytes >= LONG and (found := group.shared.find(vector)):
        call.refine(replace(call.signature, place=found.place))
        await _in_place(call, places, found.arrays, reduction)
    elif length <= places.whole and (others == 1 or vector.nbytes * others <= SHORT):
        await _at_once(call, places, vector, reduction)
    elif others == 1 and vector.itemsize > HALF:
        await _for_itself(call, places, vector, reduction)
    else:
        await _divided(call, places, vector, reduction)


def cost(size: int, nbytes: int, alpha: float, beta: float, gamma: float) -> float:
    """Infinite, because it uses no links: `auto` chooses it wherever the ranks share memory."""
    return math.inf


async def _at_once(call: Call, places: WindowLayout, vector: Vector, reduction: Reduction) -> None:
    """Lend the whole array, and reduce the arrays of all ranks."""
    memory, whole = places.memory, places.at_once(len(vector))
    turn = memory.epoch & 1
    places.greet(call)
    whole.mine[turn][:] = vector.data
    await memory.barrier()
    places.compare(call)
    operands = whole.operands[turn]
    if places.rank < 2:  # `_combine` reads the first two before it writes: use this rank's own array
        operands = [*operands]
        operands[places.rank] = vector.elements
    _combine(operands, vector.elements, reduction)
    reduction.finish(vector.elements, places.size)


async def _for_itself(call: Call, places: WindowLayout, vector: Vector, reduction: Reduction) -> None:
    """For two ranks: lend one whole chunk after another, and reduce the previous one."""
    lent, *chunks = pieces(0, len(vector), min(places.whole, max(1, CHUNK // vector.itemsize)))
    places.greet(call)
    _lend_whole(places, vector, lent)
    await places.memory.barrier()
    places.compare(call)
    for chunk in chunks:
        _lend_whole(places, vector, chunk)
        _reduce_whole(places, vector, lent, reduction)
        await places.memory.barrier()
        lent = chunk
    _reduce_whole(places, vector, lent, reduction)


def _lend_whole(places: WindowLayout, vector: Vector, chunk: Range) -> None:
    (low, high), at = chunk, places.starts(places.memory.epoch)[places.rank]
    places.windows[places.rank].bytes(at, at + high - low)[:] = vector.bytes(low, high)


def _reduce_whole(places: WindowLayout, vector: Vector, chunk: Range, reduction: Reduction) -> None:
    """Reduce the chunk that both lent before the last barrier; both operands are read before anything is written."""
    (low, high), starts = chunk, places.starts(places.memory.epoch - 1)
    operands = [window.elements[at : at + high - low] for window, at in zip(places.windows, starts, strict=True)]
    into = vector.elements[low:high]
    operands[places.rank] = into
    _combine(operands, into, reduction)
    reduction.finish(into, places.size)


async def _divided(call: Call, places: WindowLayout, vector: Vector, reduction: Reduction) -> None:
    chunks = list(pieces(0, len(vector), places.most))
    places.greet(call)
    for step in range(len(chunks) + 2):
        if step:
            await places.memory.barrier()
        if step == 1:
            places.compare(call)
        if step < len(chunks):
            _lend(places, vector, chunks[step])
        if 1 <= step <= len(chunks):
            _reduce(places, vector, chunks[step - 1], reduction)
        if step >= 2:
            _take(places, vector, chunks[step - 2])
    if places.size == 2:
        await places.memory.barrier()  # the next whole array may overwrite a place that the other rank still reads


def _lend(places: WindowLayout, vector: Vector, chunk: Range) -> None:
    """Copy all segments but this rank's own into its window."""
    turn, window = places.memory.epoch, places.windows[places.rank]
    for rank in _others(places.rank, places.size):
        low, high = _segment(chunk, places.size, rank)
        at = places.slot(turn, rank)
        window.bytes(at, at + high - low)[:] = vector.bytes(low, high)


def _reduce(places: WindowLayout, vector: Vector, chunk: Range, reduction: Reduction) -> None:
    """Reduce this rank's own segment, lent before the last barrier, into its slot; finish it, copy it to the array."""
    low, high = _segment(chunk, places.size, places.rank)
    start = places.slot(places.memory.epoch - 1, places.rank)
    stop = start + high - low
    operands = [window.elements[start:stop] for window in places.windows]
    mine, operands[places.rank] = operands[places.rank], vector.elements[low:high]
    _combine(operands, mine, reduction)
    reduction.finish(mine, places.size)
    vector.bytes(low, high)[:] = places.windows[places.rank].bytes(start, stop)


def _take(places: WindowLayout, vector: Vector, chunk: Range) -> None:
    """Copy the segments that the others reduced, from the next rank on, so that ranks read different windows."""
    for rank in _others(places.rank, places.size):
        low, high = _segment(chunk, places.size, rank)
        at = places.slot(places.memory.epoch - 2, rank)
        vector.bytes(low, high)[:] = places.windows[rank].bytes(at, at + high - low)


def _combine(operands: list, into: object, reduction: Reduction) -> None:
    first, second, *rest = operands
    reduction.combine(first, second, into)
    for operand in rest:
        reduction.combine(into, operand, into)


def _segment(chunk: Range, size: int, rank: int) -> Range:
    low, high = segment(chunk[1] - chunk[0], size, rank)
    return chunk[0] + low, chunk[0] + high


def _others(rank: int, size: int) -> Iterator[int]:
    return ((rank + distance) % size for distance in range(1, size))


async def _in_place(call: Call, places: WindowLayout, arrays: Sequence[Vector], reduction: Reduction) -> None:
    """Reduce arrays that all ranks of the group map, without copying them into a window.

    Args:
        arrays: the array of every rank, in the group's order.
    Cost: two barriers; each byte of an array is read from memory once and written once. No extra memory.
    """
    places.greet(call)
    await places.memory.barrier()
    places.compare(call)
    await _reduce_in_place(places.memory, arrays, segment(len(arrays[0]), places.size, places.rank), reduction)
    await places.memory.barrier()


async def _reduce_in_place(memory: SharedWindows, arrays: Sequence[Vector], span: Range, reduction: Reduction) -> None:
    """Reduce in the order of ranks into the first rank's array, and copy the result to the other arrays."""
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
            await memory.yield_core()
            due = perf_counter() + TURN_S
