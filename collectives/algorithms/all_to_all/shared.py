"""Shared: all-to-all through memory that the ranks share.

    an array for another rank      barriers             copies
    of more than a chunk, in
    memory of `allocate`           2, all together      1: its receiver reads it where it lies
    any other                      1 a chunk            2: into and out of a window

Each rank copies one chunk for every other rank into that rank's slot of its window, and after a barrier copies the
chunks for itself out of the others' windows, while the next ones are copied in. A slot begins with five numbers:

    bytes of the whole array for this rank | its symmetric array, 0 for none | its offset there
    | chunks of the longest array that the owner of the window copies in | whether it has one read in place | chunk

From the last two all ranks know after the first barrier how many barriers follow.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from collectives.algorithms.base import AllToAllAlgorithm, size_signature
from collectives.algorithms.parts.double_buffer import DoubleBuffer
from collectives.algorithms.parts.shared_memory_algorithm import (
    CHUNK_BYTES,
    RAW_BYTES,
    LoopYielder,
    SharedMemoryAlgorithm,
    open_buffer,
    others,
)
from collectives.arrays import pieces
from collectives.errors import Mismatch
from collectives.group import Group


class SlotHeader(NamedTuple):
    """The beginning of a slot."""

    nbytes: int
    array: int
    offset: int
    chunks: int
    in_place: int


HEADER_BYTES = 8 * len(SlotHeader._fields)
NONE = memoryview(bytearray())


class SharedAllToAll(SharedMemoryAlgorithm, AllToAllAlgorithm):
    """Through windows, or from symmetric arrays."""

    async def run(self, group: Group, outgoing: Sequence[memoryview], incoming: Sequence[memoryview]) -> None:
        """Copy every array in and out, or once from where it lies.

        Raises:
            Unsupported: the group's ranks share no memory. Mismatch: as `AllToAllAlgorithm.run`.
        Cost: a barrier for each chunk of the longest array copied in, and one where any is read in place; nothing is
            sent. Extra memory is the rank's window.
        Source: Graham, Shipman, "MPI Support for Multi-core Architectures: Optimized Shared Memory Collectives",
            section 3.
        """
        buffer = await open_buffer(group, RAW_BYTES)
        incoming[group.rank][:] = outgoing[group.rank]
        peers = list(others(group.rank, group.size))
        if not peers:
            return
        chunk_bytes = min(buffer.slot_elements - HEADER_BYTES, CHUNK_BYTES)
        copied_in = _announce(group, buffer, outgoing, chunk_bytes)
        _copy_in(buffer, copied_in, 0, chunk_bytes)
        await buffer.advance()
        headers = {rank: _header(group, buffer, rank, incoming[rank].nbytes) for rank in peers}
        chunks = max(_chunks(group, copied_in, chunk_bytes), *(header.chunks for header in headers.values()))
        await _stream_chunks(buffer, copied_in, _copied_out(headers, incoming), chunks, chunk_bytes)
        is_read = any(copied_in[rank] is NONE for rank in peers)
        if is_read or any(header.in_place for header in headers.values()):
            await _read_in_place(group, buffer, headers, incoming)


def _announce(
    group: Group, buffer: DoubleBuffer, outgoing: Sequence[memoryview], chunk_bytes: int
) -> Sequence[memoryview]:
    """Write the header of each slot; returns what is copied in: nothing of an array that is read in place."""
    locations = [group.shared.locate(array) if array.nbytes > chunk_bytes else None for array in outgoing]
    copied = [NONE if location else array for location, array in zip(locations, outgoing, strict=True)]
    in_place = any(locations[rank] for rank in others(group.rank, group.size))
    for rank in others(group.rank, group.size):
        array, offset = locations[rank] or (-1, 0)
        header = SlotHeader(outgoing[rank].nbytes, array + 1, offset, _chunks(group, copied, chunk_bytes), in_place)
        buffer.copy_in(np.array(header).view(np.uint8).data, rank)
    return copied


def _chunks(group: Group, copied: Sequence[memoryview], chunk_bytes: int) -> int:
    """The chunks of the longest array that is copied in for another rank, at least one."""
    return max(1, *(-(-copied[rank].nbytes // chunk_bytes) for rank in others(group.rank, group.size)))


def _header(group: Group, buffer: DoubleBuffer, rank: int, nbytes: int) -> SlotHeader:
    """What this rank announced of its array for this one.

    Raises:
        Mismatch: the array has another size than `nbytes`.
    """
    header = SlotHeader(*buffer.elements(rank, buffer.rank, HEADER_BYTES).view(np.int64).tolist())
    if header.nbytes != nbytes:
        own_signature = size_signature(group, nbytes)
        peer_signature = size_signature(group, header.nbytes)
        raise Mismatch.between(group.ranks[group.rank], own_signature, group.ranks[rank], peer_signature)
    return header


def _copied_out(headers: Mapping[int, SlotHeader], incoming: Sequence[memoryview]) -> list[memoryview]:
    """The arrays that are copied out of windows: `NONE` for one that is read in place."""
    ranks_in_place = {rank for rank, header in headers.items() if header.array}
    return [NONE if rank in ranks_in_place else array for rank, array in enumerate(incoming)]


async def _stream_chunks(
    buffer: DoubleBuffer,
    copied_in: Sequence[memoryview],
    copied_out: Sequence[memoryview],
    chunks: int,
    chunk_bytes: int,
) -> None:
    """Copy each chunk out while the next is copied in; the first is in already."""
    for step in range(1, chunks):
        _copy_in(buffer, copied_in, step, chunk_bytes)
        _copy_out(buffer, copied_out, step - 1, chunk_bytes)
        await buffer.advance()
    _copy_out(buffer, copied_out, chunks - 1, chunk_bytes)


def _copy_in(buffer: DoubleBuffer, outgoing: Sequence[memoryview], step: int, chunk_bytes: int) -> None:
    for rank in others(buffer.rank, buffer.size):
        buffer.copy_in(outgoing[rank][step * chunk_bytes : (step + 1) * chunk_bytes], rank, HEADER_BYTES)


def _copy_out(buffer: DoubleBuffer, incoming: Sequence[memoryview], step: int, chunk_bytes: int) -> None:
    for rank in others(buffer.rank, buffer.size):
        chunk = incoming[rank][step * chunk_bytes : (step + 1) * chunk_bytes]
        buffer.copy_out(rank, buffer.rank, chunk, offset=HEADER_BYTES)


async def _read_in_place(
    group: Group, buffer: DoubleBuffer, headers: Mapping[int, SlotHeader], incoming: Sequence[memoryview]
) -> None:
    yielder = LoopYielder(buffer.memory)
    for rank, header in headers.items():
        if header.array:
            source = group.shared.read(rank, header.array - 1, header.offset, header.nbytes)
            for low, high in pieces(0, header.nbytes, CHUNK_BYTES):
                incoming[rank][low:high] = source[low:high]
                await yielder.pause()
    await buffer.advance()  # until then others read this rank's arrays
