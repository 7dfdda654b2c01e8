"""Shared: all-reduce through memory that the ranks share, where the transport offers it.

To copy in is to copy into this rank's window (see `collectives.algorithms.parts.double_buffer`), where the others read;
to copy out, from their windows into the array.

    mode                     when                                        barriers        a rank copies, of the array
    _reduce_everywhere       short                                       1               all of it in
    _reduce_everywhere       two ranks, a dtype that is fast to reduce   1 a chunk       all of it in
    _reduce_scatter_gather   else                                        1 a chunk, +2   (n-1)/n in, (n-1)/n out
    _reduce_in_place         long, made by `allocate`                    2               nothing

In the first two modes every rank reduces the arrays of all ranks itself: with two ranks, dividing the work would save
no reads. In `_reduce_scatter_gather`, rank r reduces segment r of each chunk. Chunks stay in the cores' caches,
and several are in progress between two barriers:

    between barriers          0        1         2         3       ...
    copies in the parts of    chunk 0  chunk 1   chunk 2   chunk 3      others' segments, into this rank's window
    reduces its part of                chunk 0   chunk 1   chunk 2      from all windows into its window and its array
    copies out the parts of                      chunk 0   chunk 1      others' reduced segments

`_reduce_in_place`: rank r reduces segment r of all arrays and writes the result to all of them, one piece in the cache
at a time. So each byte of every array is read and written by one rank.

Operands are reduced in the order of ranks, each segment by one rank or by all in the same way, so all ranks end with
the same bits.
"""

from collections.abc import Iterable, Sequence

from collectives.algorithms.base import AllReduceAlgorithm
from collectives.algorithms.parts.double_buffer import DoubleBuffer
from collectives.algorithms.parts.shared_memory_algorithm import (
    LoopYielder,
    SharedMemoryAlgorithm,
    cached_elements,
    claim_symmetric_arrays,
    open_buffer,
    others,
)
from collectives.arrays import Vector, pieces, segment
from collectives.group import Group
from collectives.reduction import Reduction

ONE_BARRIER_BYTES = 1 << 20
"""Bytes of other ranks' arrays up to which a rank reduces them all itself: this costs less than a second barrier."""
SLOW_ITEMSIZE = 2
"""Bytes of an element up to which its reduction takes longer than its copies, so that two ranks divide the work."""


class SharedAllReduce(SharedMemoryAlgorithm, AllReduceAlgorithm):
    """Through windows, or in place in symmetric arrays."""

    async def run(self, group: Group, vector: Vector, reduction: Reduction) -> None:
        """Copy in, reduce, and, where the work is divided, copy out.

        Raises:
            Unsupported: the group's ranks share no memory.
        Cost: see the table above; nothing is sent; extra memory is the rank's window.
        Source: Graham, Shipman, "MPI Support for Multi-core Architectures: Optimized Shared Memory Collectives",
            section 3.
        """
        buffer = await open_buffer(group, vector)
        length = len(vector)
        peers = group.size - 1
        max_elements = buffer.whole_chunk_elements
        if not peers or not length:
            return reduction.finish(vector.elements, group.size)
        if arrays := claim_symmetric_arrays(group, vector):
            await _reduce_in_place(buffer, arrays, reduction)
        elif length <= max_elements and (peers == 1 or vector.nbytes * peers <= ONE_BARRIER_BYTES):
            await _reduce_everywhere(buffer, [vector], reduction)
        elif peers == 1 and vector.itemsize > SLOW_ITEMSIZE:
            await _reduce_everywhere(buffer, _chunks(vector, min(max_elements, cached_elements(vector))), reduction)
        else:
            await _reduce_scatter_gather(buffer, _chunks(vector, buffer.chunk_elements), reduction)


def _chunks(vector: Vector, max_elements: int) -> list[Vector]:
    return [vector.slice(*span) for span in pieces(0, len(vector), max_elements)]


async def _reduce_everywhere(buffer: DoubleBuffer, chunks: Iterable[Vector], reduction: Reduction) -> None:
    """Copy in one whole chunk after another, and reduce the previous one from the windows of all ranks."""
    last_chunk = None
    for chunk in chunks:
        buffer.copy_in(chunk.data, buffer.whole_slot(buffer.rank))
        if last_chunk is not None:
            _reduce_whole(buffer, last_chunk, reduction)
        await buffer.advance()
        last_chunk = chunk
    if last_chunk is not None:
        _reduce_whole(buffer, last_chunk, reduction)


def _reduce_whole(buffer: DoubleBuffer, chunk: Vector, reduction: Reduction) -> None:
    operands = buffer.whole_chunks(len(chunk))
    if buffer.rank < 2:  # `combine_all` reads the first two before it writes: use this rank's own array
        operands = [*operands]
        operands[buffer.rank] = chunk.elements
    reduction.combine_all(operands, chunk.elements)
    reduction.finish(chunk.elements, buffer.size)


async def _reduce_scatter_gather(buffer: DoubleBuffer, chunks: Sequence[Vector], reduction: Reduction) -> None:
    for step in range(len(chunks) + 2):
        if step:
            await buffer.advance()
        if step < len(chunks):
            _copy_in(buffer, chunks[step])
        if 1 <= step <= len(chunks):
            _reduce(buffer, chunks[step - 1], reduction)
        if step >= 2:
            _copy_out(buffer, chunks[step - 2])
    if buffer.size == 2:
        await buffer.advance()  # the next whole chunk may overwrite a half that the other rank still reads
    else:
        buffer.note_read_again()


def _copy_in(buffer: DoubleBuffer, chunk: Vector) -> None:
    """Copy all segments but this rank's own into its window."""
    for rank in others(buffer.rank, buffer.size):
        buffer.copy_in(chunk.bytes(*segment(len(chunk), buffer.size, rank)), rank)


def _reduce(buffer: DoubleBuffer, chunk: Vector, reduction: Reduction) -> None:
    """Reduce this rank's own segment into its slot, where the others read it next, and copy it to the array."""
    own_segment = chunk.slice(*segment(len(chunk), buffer.size, buffer.rank))
    operands = [buffer.elements(rank, buffer.rank, len(own_segment)) for rank in range(buffer.size)]
    result = operands[buffer.rank]
    operands[buffer.rank] = own_segment.elements
    reduction.combine_all(operands, result)
    reduction.finish(result, buffer.size)
    buffer.copy_out(buffer.rank, buffer.rank, own_segment.data)


def _copy_out(buffer: DoubleBuffer, chunk: Vector) -> None:
    """Copy the segments that the others reduced in the half that was copied in two barriers ago."""
    for rank in others(buffer.rank, buffer.size):
        buffer.copy_out(rank, rank, chunk.bytes(*segment(len(chunk), buffer.size, rank)), barriers_ago=2)


async def _reduce_in_place(buffer: DoubleBuffer, arrays: Sequence[Vector], reduction: Reduction) -> None:
    """Reduce arrays that all ranks map, in the order of ranks, into the first one; copy the result to the others.

    Args:
        arrays: the array of every rank, in the group's order.
    Cost: two barriers; each byte of an array is read from memory once and written once. No extra memory.
    """
    await buffer.advance()
    (first_array, *other_arrays) = arrays
    yielder = LoopYielder(buffer.memory)
    for low, high in pieces(
        *segment(len(first_array), buffer.size, buffer.rank), cached_elements(first_array, len(arrays))
    ):
        into = first_array.elements[low:high]
        for array in other_arrays:
            reduction.combine(into, array.elements[low:high], into)
        reduction.finish(into, len(arrays))
        for array in other_arrays:
            array.bytes(low, high)[:] = first_array.bytes(low, high)
        await yielder.pause()
    await buffer.advance()
