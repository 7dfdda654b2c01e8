"""Shared: all-gather through memory that the ranks share.

    mode               when                       barriers        a rank copies, of the array
    _gather_in_place   long, made by `allocate`   2               the other ranks' segments
    _by_windows        else                       1 a chunk       its own segment in, the others' out

Windows have two halves (see `collectives.algorithms.parts.double_buffer`): one chunk of every rank's segment is copied
in while the previous one is copied out.
"""

from collections.abc import Sequence

from collectives.algorithms.base import AllGatherAlgorithm
from collectives.algorithms.parts.double_buffer import DoubleBuffer
from collectives.algorithms.parts.shared_memory_algorithm import (
    LoopYielder,
    SharedMemoryAlgorithm,
    cached_elements,
    claim_symmetric_arrays,
    open_buffer,
    others,
)
from collectives.arrays import Range, Vector, pieces
from collectives.group import Group


class SharedAllGather(SharedMemoryAlgorithm, AllGatherAlgorithm):
    """Through windows, or between symmetric arrays."""

    async def run(self, group: Group, vector: Vector, segments: Sequence[Range]) -> None:
        """Copy the segments of the other ranks.

        Raises:
            Unsupported: the group's ranks share no memory.
        Cost: see the table; nothing is sent. Extra memory is the rank's window.
        Source: Graham, Shipman, "MPI Support for Multi-core Architectures: Optimized Shared Memory Collectives",
            section 3.
        """
        buffer = await open_buffer(group, vector)
        if group.size == 1:
            return
        if arrays := claim_symmetric_arrays(group, vector):
            await _gather_in_place(buffer, arrays, segments)
        else:
            await _by_windows(buffer, vector, segments)


async def _gather_in_place(buffer: DoubleBuffer, arrays: Sequence[Vector], segments: Sequence[Range]) -> None:
    """Copy every segment from the array of its rank.

    Args:
        arrays: the array of every rank, in the group's order.
    """
    await buffer.advance()
    own_array = arrays[buffer.rank]
    yielder = LoopYielder(buffer.memory)
    for rank in others(buffer.rank, buffer.size):
        for low, high in pieces(*segments[rank], cached_elements(own_array)):
            own_array.bytes(low, high)[:] = arrays[rank].bytes(low, high)
            await yielder.pause()
    await buffer.advance()  # until then others read this rank's segment


async def _by_windows(buffer: DoubleBuffer, vector: Vector, segments: Sequence[Range]) -> None:
    max_elements = min(buffer.whole_chunk_elements, cached_elements(vector))
    chunks = max(1, -(-max(high - low for low, high in segments) // max_elements))
    for step in range(chunks):
        buffer.copy_in(_chunk(vector, segments[buffer.rank], step, max_elements), buffer.whole_slot(buffer.rank))
        if step:
            _copy_out(buffer, [_chunk(vector, segment, step - 1, max_elements) for segment in segments])
        await buffer.advance()
    _copy_out(buffer, [_chunk(vector, segment, chunks - 1, max_elements) for segment in segments])


def _chunk(vector: Vector, segment: Range, number: int, max_elements: int) -> memoryview:
    """The bytes of this segment's chunk, perhaps none."""
    low = min(segment[0] + number * max_elements, segment[1])
    return vector.bytes(low, min(low + max_elements, segment[1]))


def _copy_out(buffer: DoubleBuffer, chunks: Sequence[memoryview]) -> None:
    """Copy the chunks that the others copied in before this rank's last barrier."""
    for rank in others(buffer.rank, buffer.size):
        buffer.copy_out(rank, buffer.whole_slot(rank), chunks[rank])
