"""Rings that are whole and share no link, and what a segment on its way takes of memory."""

import asyncio
import tracemalloc
from math import gcd

import numpy as np
import pytest

from collectives import Group, all_reduce
from collectives.algorithms.all_reduce.multi_ring import strides
from collectives.group.signature import FINGERPRINT_BYTES
from transports.local import world

PIECE = 1 << 18


@pytest.mark.parametrize("name", ["ring", "multi_ring", "rabenseifner", "recursive_doubling"])
@pytest.mark.parametrize("size", [2, 3, 5])
async def test_extra_memory_is_a_piece_for_each_ring(name, size):
    """Of a call that is not late: one that is packs a statement, for which msgpack takes 256 KiB for a moment."""
    ends = world(size)
    arrays = [np.ones(6_000_000 // 4, "float32") for _ in ends]

    groups = [Group(end, range(size), 0, piece=PIECE, patience=60) for end in ends]
    tracemalloc.start()
    calls = (all_reduce(*pair, "sum", name) for pair in zip(groups, arrays, strict=True))
    await asyncio.gather(*calls)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    lanes = len(strides(size)) if name == "multi_ring" else 1
    assert peak <= size * (lanes * PIECE + (1 << 16))
    assert (arrays[0] == size).all()


async def test_a_piece_is_forwarded_before_its_segment_is_complete():
    """Rank 0 of 3, fed by hand: two pieces a segment, and only the first of them comes from rank 2."""

    ends, piece = world(3), memoryview(bytearray(PIECE))
    array = np.ones(3 * 2 * PIECE, "uint8")
    call = asyncio.ensure_future(all_reduce(Group(ends[0], range(3), 0, piece=PIECE), array, "sum", "ring"))
    first = memoryview(bytearray(FINGERPRINT_BYTES))
    for part in (first, piece, piece):
        await ends[1].receive_buffer(0, 0, part)
    for part in (first, memoryview(b"\x05" * PIECE)):
        await ends[2].send_buffer(0, 0, part)
    await asyncio.wait_for(ends[1].receive_buffer(0, 0, piece), 5)
    assert bytes(piece) == b"\x06" * PIECE
    call.cancel()
    await asyncio.wait([call])


@pytest.mark.parametrize("size", range(1, 17))
def test_rings_are_whole_and_share_no_directed_link(size):
    rings = strides(size)
    assert 1 <= len(rings) <= 4 and len(set(rings)) == len(rings)
    assert all(gcd(stride, size) == 1 for stride in rings)
    links = [(rank, (rank + stride) % size) for stride in rings for rank in range(size)]
    assert len(set(links)) == len(links)
