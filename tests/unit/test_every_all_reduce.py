"""What every all-reduce promises, over ranks in one process. A new file in collectives/all_reduce/ is tested here."""

import asyncio

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import BrokenGroup, Group, Links, all_reduce
from collectives.all_reduce import algorithms, known
from collectives.all_reduce.auto import choose
from transports import PeerLost
from transports.local import world

EVERY = [name for name in algorithms() if name != "native"]  # needs a transport that has one: tests/mpi
SIZES = range(1, 10)
LENGTHS = (0, 1, 2, 7, 64, 1000)

pytestmark = pytest.mark.parametrize("algorithm", EVERY)


def ranks_for(algorithm, size):
    """A world for this algorithm: only `shared` gets memory that the ranks share, so that `auto` is seen to choose."""
    return world(size, lends=algorithm == "shared")


def reduced(arrays, op, algorithm, piece=1 << 20):
    """Reduce one array a rank, in place; return the ranks' ends of the network."""
    ends = ranks_for(algorithm, len(arrays))

    async def main():
        groups = [Group(end, range(len(ends)), 3, piece=piece, patience=60) for end in ends]
        calls = (all_reduce(group, array, op, algorithm) for group, array in zip(groups, arrays, strict=True))
        await asyncio.wait_for(asyncio.gather(*calls), 30)

    asyncio.run(main())
    return ends


def normal(size, length, dtype="float32"):
    return [np.random.default_rng(rank).standard_normal(length).astype(dtype) for rank in range(size)]


def bits(array):
    return (array.view(torch.uint8).numpy() if isinstance(array, torch.Tensor) else array).tobytes()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", ["sum", "mean", "max"])
def test_agrees_with_float64_and_on_all_ranks_to_the_last_bit(algorithm, size, op):
    for length in LENGTHS:
        arrays = normal(size, length)
        exact = getattr(np, op)(np.array(arrays, "float64"), axis=0)
        reduced(arrays, op, algorithm)
        np.testing.assert_allclose(arrays[0], exact, rtol=1e-5, atol=1e-6)
        assert {bits(array) for array in arrays} == {bits(arrays[0])}


@settings(max_examples=25, deadline=None)
@given(size=st.integers(1, 9), length=st.integers(0, 200), piece=st.integers(1, 100))
def test_arrays_of_many_pieces(algorithm, size, length, piece):
    arrays = normal(size, length)
    exact = np.array(arrays, "float64").sum(axis=0)
    reduced(arrays, "sum", algorithm, piece)
    np.testing.assert_allclose(arrays[0], exact, rtol=1e-5, atol=1e-5)
    assert {bits(array) for array in arrays} == {bits(arrays[0])}


@settings(max_examples=25, deadline=None)
@given(data=st.data(), size=st.integers(1, 9), length=st.integers(0, 40))
def test_integers_are_summed_exactly(algorithm, data, size, length):
    number = st.integers(-(2**40), 2**40)
    rows = st.lists(st.lists(number, min_size=length, max_size=length), min_size=size, max_size=size)
    arrays = [np.array(row, "int64") for row in data.draw(rows)]
    exact = np.sum(arrays, axis=0)
    reduced(arrays, "sum", algorithm)
    assert all((array == exact).all() for array in arrays)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "int8", "uint16", "int32", "int64"])
def test_every_numpy_dtype_is_summed_in_place(algorithm, dtype):
    arrays = [np.full((2, 3), rank + 1, dtype) for rank in range(5)]
    reduced(arrays, "sum", algorithm)
    assert all(array.dtype == dtype and (array == 15).all() for array in arrays)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64])
def test_every_torch_dtype_is_summed_in_place(algorithm, dtype):
    tensors = [torch.full((2, 3), rank + 1, dtype=dtype) for rank in range(5)]
    reduced(tensors, "sum", algorithm)
    assert all(tensor.dtype == dtype and bool((tensor == 15).all()) for tensor in tensors)


@pytest.mark.parametrize("op", ["sum", "mean", "max"])
def test_bfloat16_agrees_on_all_ranks_to_the_last_bit(algorithm, op):
    tensors = [torch.from_numpy(array).bfloat16() for array in normal(7, 333)]
    exact = getattr(torch.stack(tensors).double(), {"max": "amax"}.get(op, op))(0)
    reduced(tensors, op, algorithm)
    torch.testing.assert_close(tensors[0].double(), exact, rtol=0.05, atol=0.05)
    assert {bits(tensor) for tensor in tensors} == {bits(tensors[0])}


@pytest.mark.parametrize("op", ["sum", "mean", "max"])
def test_a_nan_anywhere_wins(algorithm, op):
    arrays = normal(6, 50)
    arrays[4][17] = np.nan
    arrays[2][49] = -np.nan
    reduced(arrays, op, algorithm)
    for array in arrays:
        assert np.flatnonzero(np.isnan(array)).tolist() == [17, 49]


@settings(max_examples=25, deadline=None)
@given(data=st.data(), size=st.integers(1, 9), op=st.sampled_from(["sum", "mean", "max"]))
def test_any_bits_at_all_end_equal_on_all_ranks(algorithm, data, size, op):
    """Infinities, NaNs of every payload, zeros of both signs: the operands' order matters, and is one order."""
    words = st.sampled_from([0, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00001, 0xFFC12345, 0x3F800000, 0x00000001])
    arrays = [np.array(data.draw(st.lists(words, min_size=21, max_size=21)), "uint32").view("f4") for _ in range(size)]
    with np.errstate(all="ignore"):
        reduced(arrays, op, algorithm)
    assert {bits(array) for array in arrays} == {bits(arrays[0])}


@pytest.mark.parametrize("size", SIZES)
def test_every_peer_is_sent_the_bytes_of_the_closed_form(algorithm, size):
    for length in (0, 1, 5, 840, 1001):
        name = choose(size, length * 4, Links()) if algorithm == "auto" else algorithm
        ends = reduced(normal(size, length), "sum", algorithm)
        sent = [end.traffic.bytes_to for end in ends]
        form = getattr(known(name), "bytes_to", lambda *call: {})  # without one, nothing is sent
        assert sent == [form(size, rank, length * 4, 4) for rank in range(size)]


def test_only_the_ranks_of_the_group_take_part(algorithm):
    ends = ranks_for(algorithm, 6)
    arrays = [np.full(10, rank, "float32") for rank in (5, 0, 3)]

    async def main():
        groups = [Group(ends[rank], (5, 0, 3), 1) for rank in (5, 0, 3)]
        await asyncio.gather(*(all_reduce(*pair, "sum", algorithm) for pair in zip(groups, arrays, strict=True)))

    asyncio.run(main())
    assert all((array == 8).all() for array in arrays)
    assert [end.traffic.bytes_sent for end in ends if end.rank not in (5, 0, 3)] == [0, 0, 0]


def test_groups_on_channels_of_their_own_run_at_once(algorithm):
    ends = ranks_for(algorithm, 4)

    async def main():
        calls = []
        for channel in range(8):
            for end in ends:
                group, array = Group(end, range(4), channel), np.full(100, 10.0**channel, "float64")
                calls.append((array, 4 * 10.0**channel, all_reduce(group, array, "sum", algorithm)))
        await asyncio.gather(*(call for _, _, call in calls))
        assert all((array == expected).all() for array, expected, _ in calls)

    asyncio.run(main())


def test_calls_on_one_group_run_one_after_another(algorithm):
    ends = ranks_for(algorithm, 5)
    arrays = [[np.full(30 + turn, rank * 10 + turn, "int64") for turn in range(6)] for rank in range(5)]

    async def rank(number):
        group = Group(ends[number], range(5), 1)
        await asyncio.gather(*(all_reduce(group, array, "sum", algorithm) for array in arrays[number]))

    async def main():
        await asyncio.gather(*map(rank, range(5)))

    asyncio.run(main())
    for row in arrays:
        assert [int(array[0]) for array in row] == [100 + 5 * turn for turn in range(6)]


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_a_rank_that_dies_ends_the_call_on_all_others(algorithm, size):
    ends = ranks_for(algorithm, size)

    async def main():
        groups = [Group(end, range(size), 1) for end in ends[:-1]]
        calls = [asyncio.ensure_future(all_reduce(group, np.ones(9), "sum", algorithm)) for group in groups]
        await asyncio.sleep(0)
        ends[-1].kill()
        done, _ = await asyncio.wait(calls, timeout=5, return_when=asyncio.FIRST_EXCEPTION)
        failed = {ends[calls.index(call)] for call in done if call.exception()}
        assert failed, "nobody noticed"
        for end in failed:  # as a runtime does: who fails tells everybody
            await end.abort("its all-reduce failed")
        ended = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 5)
        assert any(isinstance(error, PeerLost) and error.rank == size - 1 for error in ended)
        assert all(isinstance(error, Exception) for error in ended)

    asyncio.run(main())


def test_a_cancelled_call_breaks_the_group(algorithm):
    async def main():
        group = Group(ranks_for(algorithm, 3)[0], range(3), 1)
        call = asyncio.ensure_future(all_reduce(group, np.ones(9), "sum", algorithm))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(BrokenGroup, match="fresh channel"):
            await all_reduce(group, np.ones(9), "sum", algorithm)

    asyncio.run(main())


def test_a_bad_argument_is_refused_before_anything_is_sent(algorithm):
    ends = ranks_for(algorithm, 2)
    bad = [(np.ones((4, 4))[:, 1], "sum"), (np.ones(4, "int32"), "mean"), (np.ones(4), "median"), ([1.0], "sum")]

    async def main():
        groups = [Group(end, range(2), 1) for end in ends]
        for array, op in bad:
            with pytest.raises((ValueError, TypeError)):
                await all_reduce(groups[0], array, op, algorithm)
        assert ends[0].traffic.bytes_sent == 0
        arrays = [np.ones(4), np.ones(4)]
        await asyncio.gather(*(all_reduce(*pair, "sum", algorithm) for pair in zip(groups, arrays, strict=True)))
        assert all((array == 2).all() for array in arrays)

    asyncio.run(main())
