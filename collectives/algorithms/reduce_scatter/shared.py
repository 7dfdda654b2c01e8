"""Shared: reduce-scatter through memory that the ranks share.

    mode          when                       barriers        a rank copies, of the array
    _in_place     long, made by `allocate`   2               nothing
    _by_windows   else                       1 a chunk       the other ranks' segments in

Either way rank r alone reduces segment r, its own operand first. Windows have two halves (see
`collectives.algorithms.parts.window_layout`): chunks are copied in, each into the slot of the rank that reduces it,
while the previous ones are reduced.
"""

from collections.abc import Sequence
from dataclasses import replace

from collectives.algorithms.base import ReduceScatterAlgorithm
from collectives.algorithms.parts.window_layout import WindowLayout
from collectives.algorithms.parts.windows import IN_PLACE_BYTES, Turn, combine, open_layout, others
from collectives.arrays import Range, Vector, pieces
from collectives.call import Call
from collectives.group import Group
from collectives.reduction import Reduction

CHUNK_BYTES = 512 << 10
"""Bytes of a segment that are copied in at a time: they are still in the cache when they are reduced."""


class SharedReduceScatter(ReduceScatterAlgorithm):
    """Through windows, or from symmetric arrays."""

    async def is_available(self, group: Group) -> bool:
        return await group.shared.open() is not None

    async def run(self, group: Group, vector: Vector, spans: Sequence[Range], reduction: Reduction) -> None:
        """Reduce this rank's segment of all arrays.

        Raises:
            Unsupported: the group's ranks share no memory.
        Cost: see the table; a rank reduces its segment n-1 times and sends nothing. Extra memory is the rank's window.
        Source: Graham, Shipman, "MPI Support for Multi-core Architectures: Optimized Shared Memory Collectives",
            section 3.
        """
        layout, call = await open_layout(group, vector), group.calls.running
        if group.size == 1:
            return reduction.finish(vector.elements, 1)
        if vector.nbytes >= IN_PLACE_BYTES and (found := group.shared.find(vector)):
            call.refine(replace(call.signature, place=found.place))
            await _in_place(call, layout, found.arrays, spans[group.rank], reduction)
        else:
            await _by_windows(call, layout, vector, spans, reduction)


async def _in_place(
    call: Call, layout: WindowLayout, arrays: Sequence[Vector], span: Range, reduction: Reduction
) -> None:
    """Reduce a segment of all arrays into this rank's; each reads and writes segments that no other rank writes.

    Args:
        arrays: the array of every rank, in the group's order.
    """
    layout.write_greeting(call)
    await layout.memory.barrier()
    layout.compare(call)
    turn, own = Turn(layout.memory), arrays[layout.rank]
    for low, high in pieces(*span, max(1, CHUNK_BYTES // own.itemsize)):
        into = own.elements[low:high]
        rest = [arrays[rank].elements[low:high] for rank in others(layout.rank, layout.size)]
        combine([into, *rest], into, reduction)
        reduction.finish(into, layout.size)
        await turn.pause()
    await layout.memory.barrier()  # until then others read this rank's array


async def _by_windows(
    call: Call, layout: WindowLayout, vector: Vector, spans: Sequence[Range], reduction: Reduction
) -> None:
    most = min(layout.part, max(1, CHUNK_BYTES // vector.itemsize))
    chunks = [list(pieces(low, high, most)) for low, high in spans]
    own = chunks[layout.rank]
    layout.write_greeting(call)
    for step in range(max(1, *map(len, chunks))):
        for rank in others(layout.rank, layout.size):
            if step < len(chunks[rank]):
                _copy_in(layout, vector, chunks[rank][step], rank)
        if 0 < step <= len(own):
            _reduce(layout, vector, own[step - 1], reduction)
        await layout.memory.barrier()
        if not step:
            layout.compare(call)
    if len(own) == max(map(len, chunks)) and own:
        _reduce(layout, vector, own[-1], reduction)


def _copy_in(layout: WindowLayout, vector: Vector, chunk: Range, rank: int) -> None:
    """Copy a chunk into the slot of the rank that reduces it."""
    (low, high), start = chunk, layout.slot(layout.memory.epoch, rank)
    layout.windows[layout.rank].bytes(start, start + high - low)[:] = vector.bytes(low, high)


def _reduce(layout: WindowLayout, vector: Vector, chunk: Range, reduction: Reduction) -> None:
    """Reduce a chunk that the others copied in before the last barrier into the array."""
    (low, high), start = chunk, layout.slot(layout.memory.epoch - 1, layout.rank)
    into = vector.elements[low:high]
    rest = [layout.windows[rank].elements[start : start + high - low] for rank in others(layout.rank, layout.size)]
    combine([into, *rest], into, reduction)
    reduction.finish(into, layout.size)
