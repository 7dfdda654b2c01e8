"""Shared: reduce-scatter through memory that the ranks share.

    mode               when                       barriers        a rank copies, of the array
    _reduce_in_place   long, made by `allocate`   2               nothing
    _by_windows        else                       1 a chunk       the other ranks' segments in

Either way rank r alone reduces segment r, its own operand first. Windows have two halves (see
`collectives.algorithms.parts.double_buffer`): chunks are copied in, each into the slot of the rank that reduces it,
while the previous ones are reduced.
"""

from collections.abc import Sequence

from collectives.algorithms.base import ReduceScatterAlgorithm
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
from collectives.reduction import Reduction


class SharedReduceScatter(SharedMemoryAlgorithm, ReduceScatterAlgorithm):
    """Through windows, or from symmetric arrays."""

    async def run(self, group: Group, vector: Vector, segments: Sequence[Range], reduction: Reduction) -> None:
        """Reduce this rank's segment of all arrays.

        Raises:
            Unsupported: the group's ranks share no memory.
        Cost: see the table; a rank reduces its segment n-1 times and sends nothing. Extra memory is the rank's window.
        Source: Graham, Shipman, "MPI Support for Multi-core Architectures: Optimized Shared Memory Collectives",
            section 3.
        """
        buffer = await open_buffer(group, vector)
        if group.size == 1:
            return reduction.finish(vector.elements, 1)
        if arrays := claim_symmetric_arrays(group, vector):
            await _reduce_in_place(buffer, arrays, segments[group.rank], reduction)
        else:
            await _by_windows(buffer, vector, segments, reduction)


async def _reduce_in_place(
    buffer: DoubleBuffer, arrays: Sequence[Vector], segment: Range, reduction: Reduction
) -> None:
    """Reduce a segment of all arrays into this rank's; each reads and writes segments that no other rank writes.

    Args:
        arrays: the array of every rank, in the group's order.
    """
    await buffer.advance()
    own_array = arrays[buffer.rank]
    yielder = LoopYielder(buffer.memory)
    for low, high in pieces(*segment, cached_elements(own_array)):
        into = own_array.elements[low:high]
        operands = [arrays[rank].elements[low:high] for rank in others(buffer.rank, buffer.size)]
        reduction.combine_all([into, *operands], into)
        reduction.finish(into, buffer.size)
        await yielder.pause()
    await buffer.advance()  # until then others read this rank's array


async def _by_windows(buffer: DoubleBuffer, vector: Vector, segments: Sequence[Range], reduction: Reduction) -> None:
    max_elements = min(buffer.slot_elements, cached_elements(vector))
    chunks = [list(pieces(low, high, max_elements)) for low, high in segments]
    own_chunks = chunks[buffer.rank]
    for step in range(max(1, *map(len, chunks))):
        for rank in others(buffer.rank, buffer.size):
            if step < len(chunks[rank]):
                buffer.copy_in(vector.bytes(*chunks[rank][step]), rank)
        if 0 < step <= len(own_chunks):
            _reduce(buffer, vector, own_chunks[step - 1], reduction)
        await buffer.advance()
    if len(own_chunks) == max(map(len, chunks)) and own_chunks:
        _reduce(buffer, vector, own_chunks[-1], reduction)


def _reduce(buffer: DoubleBuffer, vector: Vector, chunk: Range, reduction: Reduction) -> None:
    """Reduce a chunk that the others copied in before the last barrier into the array."""
    low, high = chunk
    into = vector.elements[low:high]
    operands = [buffer.elements(rank, buffer.rank, high - low) for rank in others(buffer.rank, buffer.size)]
    reduction.combine_all([into, *operands], into)
    reduction.finish(into, buffer.size)
