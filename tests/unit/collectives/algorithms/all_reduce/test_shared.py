"""All-reduce through shared memory, beyond what every algorithm promises: its order, its chunks, and going without."""

import asyncio

import numpy as np
import pytest

from collectives import Group, Mismatch, all_reduce
from collectives.algorithms.parts.double_buffer import DoubleBuffer
from collectives.arrays import Vector
from collectives.group.signature import FINGERPRINT_BYTES
from tests.conformance.worlds import local_world


def run(arrays, ends=None, window=2 << 20, algorithm="shared", op="sum"):
    """Reduce one array a rank; return what each rank's call raised."""
    ends = ends or local_world(len(arrays), shared_memory=True)

    async def main():
        groups = [Group(end, range(len(ends)), 0, window=window) for end in ends]
        calls = (all_reduce(group, array, op, algorithm) for group, array in zip(groups, arrays, strict=True))
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)

    return asyncio.run(main())


def normal(size, length):
    return [np.random.default_rng(rank).standard_normal(length).astype("float32") for rank in range(size)]


@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize(
    ("length", "window"), [(5, 1 << 12), (5, 1024), (5000, 1 << 12), (100_000, 1 << 15), (300_000, 2 << 20)]
)
def test_sums_in_the_order_of_ranks_to_the_last_bit(size, length, window):
    arrays = normal(size, length)
    exact = arrays[0].copy()
    for array in arrays[1:]:
        exact += array
    assert run(arrays, window=window) == [None] * size
    assert all(array.tobytes() == exact.tobytes() for array in arrays)


@pytest.mark.parametrize("window", [10, 256, 383])
def test_a_window_too_small_for_its_ranks_is_refused_and_the_group_stays_usable(window):
    async def rank(end):
        group, array = Group(end, range(2), 0, window=window), np.ones(100, "float32")
        with pytest.raises(ValueError, match=r"ranks: 2\); give Group\(window=384\) or more"):
            await all_reduce(group, array, "sum", "shared")
        await all_reduce(group, array, "sum", "ring")
        return float(array.sum())

    async def main():
        return await asyncio.wait_for(asyncio.gather(*map(rank, local_world(2, shared_memory=True))), 5)

    assert asyncio.run(main()) == [200.0, 200.0]


@pytest.mark.parametrize("size", [2, 3, 5])
async def test_short_and_long_arrays_follow_one_another_in_the_same_memory(size):
    ends, lengths = local_world(size, shared_memory=True), [3, 4000, 1, 1, 9000, 2, 5000, 5000, 7]
    kinds = ["int64", "int64", "int16", "int64", "int16", "int64", "int64", "int16", "int64"]
    arrays = [[np.full(*of) for of in zip(lengths, range(rank, 99), kinds, strict=False)] for rank in range(size)]

    async def rank(number):
        group = Group(ends[number], range(size), 0, window=1 << 14)
        for array in arrays[number]:
            await all_reduce(group, array, "sum", "shared")

    await asyncio.wait_for(asyncio.gather(*map(rank, range(size))), 30)
    for row in arrays:
        assert all((array == sum(range(size)) + size * turn).all() for turn, array in enumerate(row))


@pytest.mark.parametrize("size", [2, 3, 5, 7])
async def test_slots_begin_at_the_same_byte_for_every_dtype(size):
    """Otherwise a call writes where another rank still reads in the call before, of another dtype: sums were wrong."""

    async def starts(end):
        group = Group(end, range(size), 0, window=1 << 14)
        memory = await group.shared.open()
        window = memory.windows[group.rank]
        vectors = [Vector.of(np.empty(0, dtype)) for dtype in ("int8", "int16", "float32", "int64", "complex128")]
        buffers = [DoubleBuffer(group, memory, vector) for vector in vectors]

        def start(buffer, slot):
            buffer.copy_in(memoryview(b"x"), slot)
            at = bytes(window).index(b"x")
            window[at] = 0
            return at

        halves = [{tuple(start(buffer, slot) for slot in range(size)) for buffer in buffers}]
        await memory.barrier()
        return *halves, {tuple(start(buffer, slot) for slot in range(size)) for buffer in buffers}

    for even, odd in await asyncio.wait_for(asyncio.gather(*map(starts, local_world(size, shared_memory=True))), 30):
        assert len(even) == len(odd) == 1 and max(*even) < min(*odd)


@pytest.mark.parametrize(("size", "length", "barriers"), [(2, 5000, 3), (4, 5000, 4), (4, 5, 1)])
async def test_divided_work_needs_one_more_barrier(size, length, barriers):
    ends = local_world(size, shared_memory=True)

    async def rank(end):
        group = Group(end, range(size), 0, window=(1 << 14) + 2 * FINGERPRINT_BYTES)  # two places of 2,048 elements
        await all_reduce(group, np.ones(length, "float32"), "sum", "shared")
        return (await group.shared.open()).epoch

    assert (await asyncio.wait_for(asyncio.gather(*map(rank, ends)), 30)) == [barriers] * size


@pytest.mark.parametrize("others", [np.ones(5, "float32"), np.ones(4, "int32"), np.ones(300_000, "float32")])
def test_a_mismatch_names_both_calls_on_all_ranks(others):
    first, second = run([np.ones(4, "float32"), others])
    for error in (first, second):
        assert isinstance(error, Mismatch)
        assert "sum of 4 float32" in str(error) and f"sum of {len(others)} {others.dtype}" in str(error)


def test_shared_without_shared_memory_is_refused():
    for error in run([np.ones(4), np.ones(4)], local_world(2)):
        assert isinstance(error, ValueError) and "share no memory (transport: LocalTransport, ranks: (0, 1))" in str(
            error
        )


def test_ranks_of_two_nodes_share_no_memory():
    assert all(
        isinstance(error, ValueError) for error in run([np.ones(4)] * 3, local_world(3, (0, 0, 2), shared_memory=True))
    )


@pytest.mark.parametrize("shares", [True, False])
def test_auto_sends_nothing_where_memory_is_shared(shares):
    ends, arrays = local_world(4, shared_memory=shares), normal(4, 1000)
    exact = np.sum(arrays, axis=0)
    assert run(arrays, ends, algorithm="auto") == [None] * 4
    assert all(np.allclose(array, exact, atol=1e-5) for array in arrays)
    assert any(end.traffic.bytes_sent for end in ends) != shares
