"""Shared: all-to-all through memory that the ranks share.

Each rank copies one chunk for every other rank into that rank's slot of its window, and after a barrier copies the
chunks for itself out of the others' windows, while the next ones are copied in. A slot begins with two numbers:

    bytes of the whole array for this rank | chunks of the longest array that the owner of the window sends | chunk

With the second number all ranks know after the first barrier how many barriers follow.
"""

from collections.abc import Sequence

import numpy as np

from collectives.algorithms.base import AllToAllAlgorithm, size_signature
from collectives.algorithms.parts.window_layout import WindowLayout
from collectives.algorithms.parts.windows import open_layout, others
from collectives.arrays import Vector
from collectives.group import Group
from collectives.signature import Mismatch

CHUNK_BYTES = 512 << 10
"""Bytes for one rank that are copied in at a time: they are still in the cache when they are copied out."""
HEADER_BYTES = 16
BYTES = Vector.of(np.empty(0, np.uint8))
"""The kind of the windows' elements."""


class SharedAllToAll(AllToAllAlgorithm):
    """Through windows."""

    async def is_available(self, group: Group) -> bool:
        return await group.shared.open() is not None

    async def run(self, group: Group, outgoing: Sequence[memoryview], incoming: Sequence[memoryview]) -> None:
        """Copy every array in and out.

        Raises:
            Unsupported: the group's ranks share no memory. Mismatch: as `AllToAllAlgorithm.run`.
        Cost: a barrier for each chunk of the longest array; nothing is sent. Extra memory is the rank's window.
        Source: Graham, Shipman, "MPI Support for Multi-core Architectures: Optimized Shared Memory Collectives",
            section 3.
        """
        layout, call = await open_layout(group, BYTES), group.calls.running
        incoming[group.rank][:] = outgoing[group.rank]
        peers = list(others(group.rank, group.size))
        if not peers:
            return
        most = min(layout.part - HEADER_BYTES, CHUNK_BYTES)
        chunks = max(1, *(-(-outgoing[rank].nbytes // most) for rank in peers))
        layout.write_greeting(call)
        for rank in peers:
            header = np.array([outgoing[rank].nbytes, chunks]).view(np.uint8).data
            _slot(layout, layout.rank, rank, layout.memory.epoch)[:HEADER_BYTES] = header
        _copy_in(layout, outgoing, 0, most)
        await layout.memory.barrier()
        layout.compare(call)
        chunks = max(chunks, *(_check(group, layout, rank, incoming[rank].nbytes) for rank in peers))
        for step in range(1, chunks):
            _copy_in(layout, outgoing, step, most)
            _copy_out(layout, incoming, step - 1, most)
            await layout.memory.barrier()
        _copy_out(layout, incoming, chunks - 1, most)


def _slot(layout: WindowLayout, owner: int, rank: int, epoch: int) -> memoryview:
    """The memory for a rank in the owner's window, as written after `epoch` barriers."""
    start = layout.slot(epoch, rank)
    return layout.windows[owner].bytes(start, start + layout.part)


def _check(group: Group, layout: WindowLayout, rank: int, expected: int) -> int:
    """Compare the size of the array from this rank; returns the chunks of the longest that it sends."""
    header = _slot(layout, rank, layout.rank, layout.memory.epoch - 1)
    nbytes, chunks = np.frombuffer(header, np.int64, 2).tolist()
    if nbytes != expected:
        mine, theirs = size_signature(group, expected), size_signature(group, nbytes)
        raise Mismatch.between(group.ranks[group.rank], mine, group.ranks[rank], theirs)
    return chunks


def _copy_in(layout: WindowLayout, outgoing: Sequence[memoryview], step: int, most: int) -> None:
    for rank in others(layout.rank, layout.size):
        chunk = outgoing[rank][step * most : (step + 1) * most]
        _slot(layout, layout.rank, rank, layout.memory.epoch)[HEADER_BYTES:][: chunk.nbytes] = chunk


def _copy_out(layout: WindowLayout, incoming: Sequence[memoryview], step: int, most: int) -> None:
    for rank in others(layout.rank, layout.size):
        chunk = incoming[rank][step * most : (step + 1) * most]
        chunk[:] = _slot(layout, rank, layout.rank, layout.memory.epoch - 1)[HEADER_BYTES:][: chunk.nbytes]
