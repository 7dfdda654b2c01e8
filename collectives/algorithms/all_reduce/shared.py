"""Shared: all-reduce through memory that the ranks share, where the transport offers it.

To copy in is to copy into this rank's window, where the others read; to copy out, from their windows into the array.

    mode                     when                                        barriers        a rank copies, of the array
    _at_once                 short                                       1               all of it in
    _redundant               two ranks, a dtype that is fast to reduce   1 a chunk       all of it in
    _reduce_scatter_gather   else                                        1 a chunk, +2   (n-1)/n in, (n-1)/n out
    _in_place                long, made by `allocate`                    2               nothing

In the first two modes every rank reduces the arrays of all ranks itself: with two ranks, dividing the work would save
no reads. In `_reduce_scatter_gather`, rank r reduces segment r of each chunk. Chunks stay in the cores' caches,
and several are in progress between two barriers:

    between barriers          0        1         2         3       ...
    copies in the parts of    chunk 0  chunk 1   chunk 2   chunk 3      others' segments, into this rank's window
    reduces its part of                chunk 0   chunk 1   chunk 2      from all windows into its window and its array
    copies out the parts of                      chunk 0   chunk 1      others' reduced segments

`_in_place`: rank r reduces segment r of all arrays and writes the result to all of them, one piece in the cache at a
time. So each byte of every array is read and written by one rank.

Data written into a window between two barriers is read between the next two, and may be overwritten after those; so
each window has two halves, used in turn (see `collectives.algorithms.parts.window_layout`).

Operands are reduced in the order of ranks, each segment by one rank or by all in the same way, so all ranks end with
the same bits.
"""

from collections.abc import Sequence
from dataclasses import replace

from collectives.algorithms.base import AllReduceAlgorithm
from collectives.algorithms.parts.window_layout import WindowLayout
from collectives.algorithms.parts.windows import IN_PLACE_BYTES, Turn, combine, open_layout, others
from collectives.arrays import Range, Vector, pieces, segment
from collectives.call import Call
from collectives.group import Group
from collectives.reduction import Reduction
from transports.base import SharedWindows

SHORT_BYTES = 1 << 20
"""Bytes of other ranks' arrays up to which a rank reduces them all itself: this costs less than a second barrier."""
CHUNK_BYTES = 512 << 10
"""Bytes that each of two ranks copies in at a time: with the arrays they stay in a core's cache (1 MiB took 1.7
times as long for arrays of 64 MiB, 1.6 times for 16 MiB). Chunks divided by more ranks are larger: each costs a
barrier."""
SLOW_ITEMSIZE = 2
"""Bytes of an element up to which its reduction takes longer than its copies, so that two ranks divide the work."""
PIECE_BYTES = 512 << 10
"""Bytes, over all arrays together, that are reduced at a time; they fit into a core's cache."""


class SharedAllReduce(AllReduceAlgorithm):
    """Through windows, or in place in symmetric arrays."""

    async def is_available(self, group: Group) -> bool:
        return await group.shared.open() is not None

    async def run(self, group: Group, vector: Vector, reduction: Reduction) -> None:
        """Copy in, reduce, and, where the work is divided, copy out.

        Raises:
            Unsupported: the group's ranks share no memory.
        Cost: short array: one barrier; two ranks: one barrier per chunk; in both cases a rank copies the array once and
            reduces all of it. Divided work: one barrier per chunk and two more; a rank copies 2(n-1)/n of the array and
            reduces (n-1)/n. Array in shared memory: two barriers. Nothing is sent. Extra memory is the rank's window.
        Source: Graham, Shipman, "MPI Support for Multi-core Architectures: Optimized Shared Memory Collectives",
            section 3.
        """
        layout = await open_layout(group, vector)
        length, peers = len(vector), group.size - 1
        if not peers or not length:
            return reduction.finish(vector.elements, group.size)
        call = group.calls.running
        if vector.nbytes >= IN_PLACE_BYTES and (found := group.shared.find(vector)):
            call.refine(replace(call.signature, place=found.place))
            await _in_place(call, layout, found.arrays, reduction)
        elif length <= layout.whole and (peers == 1 or vector.nbytes * peers <= SHORT_BYTES):
            await _at_once(call, layout, vector, reduction)
        elif peers == 1 and vector.itemsize > SLOW_ITEMSIZE:
            await _redundant(call, layout, vector, reduction)
        else:
            await _reduce_scatter_gather(call, layout, vector, reduction)


async def _at_once(call: Call, layout: WindowLayout, vector: Vector, reduction: Reduction) -> None:
    """Copy the whole array in, and reduce the arrays of all ranks."""
    memory, whole = layout.memory, layout.at_once(len(vector))
    parity = memory.epoch & 1
    layout.write_greeting(call)
    whole.mine[parity][:] = vector.data
    await memory.barrier()
    layout.compare(call)
    operands = whole.operands[parity]
    if layout.rank < 2:  # `_combine` reads the first two before it writes: use this rank's own array
        operands = [*operands]
        operands[layout.rank] = vector.elements
    combine(operands, vector.elements, reduction)
    reduction.finish(vector.elements, layout.size)


async def _redundant(call: Call, layout: WindowLayout, vector: Vector, reduction: Reduction) -> None:
    """For two ranks: copy in one whole chunk after another, and reduce the previous one."""
    previous, *chunks = pieces(0, len(vector), min(layout.whole, max(1, CHUNK_BYTES // vector.itemsize)))
    layout.write_greeting(call)
    _copy_in_whole(layout, vector, previous)
    await layout.memory.barrier()
    layout.compare(call)
    for chunk in chunks:
        _copy_in_whole(layout, vector, chunk)
        _reduce_whole(layout, vector, previous, reduction)
        await layout.memory.barrier()
        previous = chunk
    _reduce_whole(layout, vector, previous, reduction)


def _copy_in_whole(layout: WindowLayout, vector: Vector, chunk: Range) -> None:
    (low, high), at = chunk, layout.starts(layout.memory.epoch)[layout.rank]
    layout.windows[layout.rank].bytes(at, at + high - low)[:] = vector.bytes(low, high)


def _reduce_whole(layout: WindowLayout, vector: Vector, chunk: Range, reduction: Reduction) -> None:
    """Reduce the chunk copied in before the last barrier; both operands are read before anything is written."""
    (low, high), starts = chunk, layout.starts(layout.memory.epoch - 1)
    operands = [window.elements[at : at + high - low] for window, at in zip(layout.windows, starts, strict=True)]
    into = vector.elements[low:high]
    operands[layout.rank] = into
    combine(operands, into, reduction)
    reduction.finish(into, layout.size)


async def _reduce_scatter_gather(call: Call, layout: WindowLayout, vector: Vector, reduction: Reduction) -> None:
    chunks = list(pieces(0, len(vector), layout.most))
    layout.write_greeting(call)
    for step in range(len(chunks) + 2):
        if step:
            await layout.memory.barrier()
        if step == 1:
            layout.compare(call)
        if step < len(chunks):
            _copy_in(layout, vector, chunks[step])
        if 1 <= step <= len(chunks):
            _reduce(layout, vector, chunks[step - 1], reduction)
        if step >= 2:
            _copy_out(layout, vector, chunks[step - 2])
    if layout.size == 2:
        await layout.memory.barrier()  # the next whole array may overwrite a half that the other rank still reads


def _copy_in(layout: WindowLayout, vector: Vector, chunk: Range) -> None:
    """Copy all segments but this rank's own into its window."""
    epoch, window = layout.memory.epoch, layout.windows[layout.rank]
    for rank in others(layout.rank, layout.size):
        low, high = _segment(chunk, layout.size, rank)
        at = layout.slot(epoch, rank)
        window.bytes(at, at + high - low)[:] = vector.bytes(low, high)


def _reduce(layout: WindowLayout, vector: Vector, chunk: Range, reduction: Reduction) -> None:
    """Reduce this rank's own segment, copied in before the last barrier, into its slot; copy it to the array."""
    low, high = _segment(chunk, layout.size, layout.rank)
    start = layout.slot(layout.memory.epoch - 1, layout.rank)
    stop = start + high - low
    operands = [window.elements[start:stop] for window in layout.windows]
    mine, operands[layout.rank] = operands[layout.rank], vector.elements[low:high]
    combine(operands, mine, reduction)
    reduction.finish(mine, layout.size)
    vector.bytes(low, high)[:] = layout.windows[layout.rank].bytes(start, stop)


def _copy_out(layout: WindowLayout, vector: Vector, chunk: Range) -> None:
    """Copy the segments that the others reduced, from the next rank on, so that ranks read different windows."""
    for rank in others(layout.rank, layout.size):
        low, high = _segment(chunk, layout.size, rank)
        at = layout.slot(layout.memory.epoch - 2, rank)
        vector.bytes(low, high)[:] = layout.windows[rank].bytes(at, at + high - low)


def _segment(chunk: Range, size: int, rank: int) -> Range:
    low, high = segment(chunk[1] - chunk[0], size, rank)
    return chunk[0] + low, chunk[0] + high


async def _in_place(call: Call, layout: WindowLayout, arrays: Sequence[Vector], reduction: Reduction) -> None:
    """Reduce arrays that all ranks of the group map, without copying them into a window.

    Args:
        arrays: the array of every rank, in the group's order.
    Cost: two barriers; each byte of an array is read from memory once and written once. No extra memory.
    """
    layout.write_greeting(call)
    await layout.memory.barrier()
    layout.compare(call)
    await _reduce_in_place(layout.memory, arrays, segment(len(arrays[0]), layout.size, layout.rank), reduction)
    await layout.memory.barrier()


async def _reduce_in_place(memory: SharedWindows, arrays: Sequence[Vector], span: Range, reduction: Reduction) -> None:
    """Reduce in the order of ranks into the first rank's array, and copy the result to the other arrays."""
    first, *rest = arrays
    turn = Turn(memory)
    for low, high in pieces(*span, max(1, PIECE_BYTES // len(arrays) // first.itemsize)):
        into = first.elements[low:high]
        for other in rest:
            reduction.combine(into, other.elements[low:high], into)
        reduction.finish(into, len(arrays))
        for other in rest:
            other.bytes(low, high)[:] = first.bytes(low, high)
        await turn.pause()
