"""Shared: all-gather through memory that the ranks share.

    mode          when                       barriers        a rank copies, of the array
    _in_place     long, made by `allocate`   2               the other ranks' segments
    _by_windows   else                       1 a chunk       its own segment in, the others' out

Windows have two halves (see `collectives.algorithms.parts.window_layout`): one chunk of every rank's segment is copied
in while the previous one is copied out.
"""

from collections.abc import Sequence
from dataclasses import replace

from collectives.algorithms.base import AllGatherAlgorithm
from collectives.algorithms.parts.window_layout import WindowLayout
from collectives.algorithms.parts.windows import IN_PLACE_BYTES, Turn, open_layout, others
from collectives.arrays import Range, Vector, pieces
from collectives.call import Call
from collectives.group import Group

CHUNK_BYTES = 512 << 10
"""Bytes of a segment that a rank copies in at a time: they are still in the cache when the others copy them out."""
PIECE_BYTES = 512 << 10
"""Bytes copied before the event loop may run."""


class SharedAllGather(AllGatherAlgorithm):
    """Through windows, or between symmetric arrays."""

    async def is_available(self, group: Group) -> bool:
        return await group.shared.open() is not None

    async def run(self, group: Group, vector: Vector, spans: Sequence[Range]) -> None:
        """Copy the segments of the other ranks.

        Raises:
            Unsupported: the group's ranks share no memory.
        Cost: see the table; nothing is sent. Extra memory is the rank's window.
        Source: Graham, Shipman, "MPI Support for Multi-core Architectures: Optimized Shared Memory Collectives",
            section 3.
        """
        layout, call = await open_layout(group, vector), group.calls.running
        if group.size == 1:
            return
        if vector.nbytes >= IN_PLACE_BYTES and (found := group.shared.find(vector)):
            call.refine(replace(call.signature, place=found.place))
            await _in_place(call, layout, found.arrays, spans)
        else:
            await _by_windows(call, layout, vector, spans)


async def _in_place(call: Call, layout: WindowLayout, arrays: Sequence[Vector], spans: Sequence[Range]) -> None:
    """Copy every segment from the array of its rank.

    Args:
        arrays: the array of every rank, in the group's order.
    """
    layout.write_greeting(call)
    await layout.memory.barrier()
    layout.compare(call)
    turn = Turn(layout.memory)
    for rank in others(layout.rank, layout.size):
        for low, high in pieces(*spans[rank], PIECE_BYTES // arrays[rank].itemsize):
            arrays[layout.rank].bytes(low, high)[:] = arrays[rank].bytes(low, high)
            await turn.pause()
    await layout.memory.barrier()  # until then others read this rank's segment


async def _by_windows(call: Call, layout: WindowLayout, vector: Vector, spans: Sequence[Range]) -> None:
    most = min(layout.whole, max(1, CHUNK_BYTES // vector.itemsize))
    chunks = max(1, -(-max(high - low for low, high in spans) // most))
    layout.write_greeting(call)
    for step in range(chunks):
        _copy_in(layout, vector, _chunk(spans[layout.rank], step, most))
        if step:
            _copy_out(layout, vector, [_chunk(span, step - 1, most) for span in spans])
        await layout.memory.barrier()
        if not step:
            layout.compare(call)
    _copy_out(layout, vector, [_chunk(span, chunks - 1, most) for span in spans])


def _chunk(span: Range, number: int, most: int) -> Range:
    """The elements of this segment's chunk; it may be empty."""
    low = min(span[0] + number * most, span[1])
    return low, min(low + most, span[1])


def _copy_in(layout: WindowLayout, vector: Vector, chunk: Range) -> None:
    (low, high), start = chunk, layout.starts(layout.memory.epoch)[layout.rank]
    layout.windows[layout.rank].bytes(start, start + high - low)[:] = vector.bytes(low, high)


def _copy_out(layout: WindowLayout, vector: Vector, chunks: Sequence[Range]) -> None:
    """Copy the chunks of the others that were copied in before the last barrier of which this rank knows."""
    starts = layout.starts(layout.memory.epoch - 1)
    for rank in others(layout.rank, layout.size):
        (low, high), start = chunks[rank], starts[rank]
        vector.bytes(low, high)[:] = layout.windows[rank].bytes(start, start + high - low)
