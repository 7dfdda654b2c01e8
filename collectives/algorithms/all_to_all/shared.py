"""Shared: all-to-all through memory that the ranks share.

Each rank copies one chunk for every other rank into that rank's slot of its window, and after a barrier copies the
chunks for itself out of the others' windows, while the next ones are copied in. A slot begins with two numbers:

    bytes of the whole array for this rank | chunks of the longest array that the owner of the window sends | chunk

With the second number all ranks know after the first barrier how many barriers follow.
"""

from collections.abc import Sequence

import numpy as np

from collectives.algorithms.base import AllToAllAlgorithm, size_signature
from collectives.algorithms.parts.double_buffer import DoubleBuffer
from collectives.algorithms.parts.windows import BYTES, CHUNK_BYTES, SharedMemoryAlgorithm, open_buffer, others
from collectives.errors import Mismatch
from collectives.group import Group

HEADER_BYTES = 16


class SharedAllToAll(SharedMemoryAlgorithm, AllToAllAlgorithm):
    """Through windows."""

    async def run(self, group: Group, outgoing: Sequence[memoryview], incoming: Sequence[memoryview]) -> None:
        """Copy every array in and out.

        Raises:
            Unsupported: the group's ranks share no memory. Mismatch: as `AllToAllAlgorithm.run`.
        Cost: a barrier for each chunk of the longest array; nothing is sent. Extra memory is the rank's window.
        Source: Graham, Shipman, "MPI Support for Multi-core Architectures: Optimized Shared Memory Collectives",
            section 3.
        """
        buffer = await open_buffer(group, BYTES)
        incoming[group.rank][:] = outgoing[group.rank]
        peers = list(others(group.rank, group.size))
        if not peers:
            return
        chunk_bytes = min(buffer.slot_elements - HEADER_BYTES, CHUNK_BYTES)
        chunks = max(1, *(-(-outgoing[rank].nbytes // chunk_bytes) for rank in peers))
        for rank in peers:
            buffer.copy_in(np.array([outgoing[rank].nbytes, chunks]).view(np.uint8).data, rank)
        _copy_in(buffer, outgoing, 0, chunk_bytes)
        await buffer.advance()
        chunks = max(chunks, *(_check(group, buffer, rank, incoming[rank].nbytes) for rank in peers))
        for step in range(1, chunks):
            _copy_in(buffer, outgoing, step, chunk_bytes)
            _copy_out(buffer, incoming, step - 1, chunk_bytes)
            await buffer.advance()
        _copy_out(buffer, incoming, chunks - 1, chunk_bytes)


def _check(group: Group, buffer: DoubleBuffer, rank: int, expected: int) -> int:
    """Compare the size of the array from this rank; returns the chunks of the longest that it sends."""
    nbytes, chunks = buffer.elements(rank, buffer.rank, HEADER_BYTES).view(np.int64).tolist()
    if nbytes != expected:
        mine, theirs = size_signature(group, expected), size_signature(group, nbytes)
        raise Mismatch.between(group.ranks[group.rank], mine, group.ranks[rank], theirs)
    return chunks


def _copy_in(buffer: DoubleBuffer, outgoing: Sequence[memoryview], step: int, chunk_bytes: int) -> None:
    for rank in others(buffer.rank, buffer.size):
        buffer.copy_in(outgoing[rank][step * chunk_bytes : (step + 1) * chunk_bytes], rank, HEADER_BYTES)


def _copy_out(buffer: DoubleBuffer, incoming: Sequence[memoryview], step: int, chunk_bytes: int) -> None:
    for rank in others(buffer.rank, buffer.size):
        chunk = incoming[rank][step * chunk_bytes : (step + 1) * chunk_bytes]
        buffer.copy_out(rank, buffer.rank, chunk, offset=HEADER_BYTES)
