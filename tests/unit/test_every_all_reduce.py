"""What every all-reduce promises, over `local` and `tcp`. Each file in collectives/algorithms/all_reduce is tested.

Over `tcp` bytes land in the receiver's memory as they come, whatever it does: there memory that is shared or reused too
soon makes wrong sums, which copies in one process hide.
"""

import asyncio
from contextlib import asynccontextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import BrokenGroup, Group, Links, ProblemSize, all_reduce
from collectives.algorithms import ALL_REDUCE, AUTO
from tests.conformance.worlds import kill, local_world, tcp_world
from tests.unit.collectives.owned import owned
from transports import PeerAborted, PeerLost

EVERY = [AUTO, *(name for name in ALL_REDUCE.names if name != "native")]  # needs a transport that has one: tests/mpi
SIZES = {"local": range(1, 10), "tcp": (2, 3, 5)}
LENGTHS = (0, 1, 2, 7, 64, 1000)

OVER = [(name, scheme) for name in EVERY for scheme in SIZES if (name, scheme) != ("shared", "tcp")]  # tcp has none
in_one_process = pytest.mark.parametrize("algorithm", EVERY)
over_both = pytest.mark.parametrize(("algorithm", "scheme"), OVER)
of_every_size = pytest.mark.parametrize(
    ("algorithm", "scheme", "size"), [(*over, size) for over in OVER for size in SIZES[over[1]]]
)


@asynccontextmanager
async def opened(algorithm, size, scheme="local"):
    """A world for this algorithm: only `shared` gets memory that the ranks share, so that `auto` is seen to choose."""
    ends = await tcp_world(size) if scheme == "tcp" else local_world(size, shared_memory=algorithm == "shared")
    try:
        yield ends
    finally:
        await asyncio.gather(*(end.close() for end in ends))


def reduced(arrays, op, algorithm, piece=1 << 20, scheme="local"):
    """Reduce one array a rank, in place; return the ranks' ends of the network."""

    async def main():
        async with opened(algorithm, len(arrays), scheme) as ends:
            groups = [Group(end, range(len(ends)), 3, piece=piece) for end in ends]
            calls = (all_reduce(group, array, op, algorithm) for group, array in zip(groups, arrays, strict=True))
            await asyncio.wait_for(asyncio.gather(*calls), 30)
            return ends

    return asyncio.run(main())


def normal(size, length, dtype="float32"):
    return [np.random.default_rng(rank).standard_normal(length).astype(dtype) for rank in range(size)]


def bits(array):
    return (array.view(torch.uint8).numpy() if isinstance(array, torch.Tensor) else array).tobytes()


@of_every_size
@pytest.mark.parametrize("op", ["sum", "mean", "max"])
def test_agrees_with_float64_and_on_all_ranks_to_the_last_bit(algorithm, scheme, size, op):
    for length in LENGTHS if scheme == "local" else (0, 1, 1000):
        arrays = normal(size, length)
        exact = getattr(np, op)(np.array(arrays, "float64"), axis=0)
        reduced(arrays, op, algorithm, scheme=scheme)
        np.testing.assert_allclose(arrays[0], exact, rtol=1e-5, atol=1e-6)
        assert {bits(array) for array in arrays} == {bits(arrays[0])}


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("algorithm", [name for name, scheme in OVER if scheme == "tcp"])
def test_over_tcp_sums_of_many_pieces_on_one_group_are_right(algorithm, size):
    """The rings of `multi_ring` once had to have memory of their own for this: with one for all, no sum was right."""
    rounds = [normal(size, 20_000, "float64") for _ in range(3)]
    exact = sum(rounds[0])

    async def main():
        async with opened(algorithm, size, "tcp") as ends:
            groups = [Group(end, range(size), 3, piece=1 << 12) for end in ends]
            for arrays in rounds:
                calls = (all_reduce(*pair, "sum", algorithm) for pair in zip(groups, arrays, strict=True))
                await asyncio.wait_for(asyncio.gather(*calls), 30)

    asyncio.run(main())
    for arrays in rounds:
        for array in arrays:
            np.testing.assert_allclose(array, exact, rtol=1e-12, atol=1e-12)


@in_one_process
@settings(max_examples=25, deadline=None)
@given(size=st.integers(1, 9), length=st.integers(0, 200), piece=st.integers(1, 100))
def test_arrays_of_many_pieces(algorithm, size, length, piece):
    arrays = normal(size, length)
    exact = np.array(arrays, "float64").sum(axis=0)
    reduced(arrays, "sum", algorithm, piece)
    np.testing.assert_allclose(arrays[0], exact, rtol=1e-5, atol=1e-5)
    assert {bits(array) for array in arrays} == {bits(arrays[0])}


@in_one_process
@settings(max_examples=25, deadline=None)
@given(data=st.data(), size=st.integers(1, 9), length=st.integers(0, 40))
def test_integers_are_summed_exactly(algorithm, data, size, length):
    number = st.integers(-(2**40), 2**40)
    rows = st.lists(st.lists(number, min_size=length, max_size=length), min_size=size, max_size=size)
    arrays = [np.array(row, "int64") for row in data.draw(rows)]
    exact = np.sum(arrays, axis=0)
    reduced(arrays, "sum", algorithm)
    assert all((array == exact).all() for array in arrays)


@in_one_process
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "int8", "uint16", "int32", "int64"])
def test_every_numpy_dtype_is_summed_in_place(algorithm, dtype):
    arrays = [np.full((2, 3), rank + 1, dtype) for rank in range(5)]
    reduced(arrays, "sum", algorithm)
    assert all(array.dtype == dtype and (array == 15).all() for array in arrays)


@in_one_process
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64])
def test_every_torch_dtype_is_summed_in_place(algorithm, dtype):
    tensors = [torch.full((2, 3), rank + 1, dtype=dtype) for rank in range(5)]
    reduced(tensors, "sum", algorithm)
    assert all(tensor.dtype == dtype and bool((tensor == 15).all()) for tensor in tensors)


@in_one_process
@pytest.mark.parametrize("op", ["sum", "mean", "max"])
def test_bfloat16_agrees_on_all_ranks_to_the_last_bit(algorithm, op):
    tensors = [torch.from_numpy(array).bfloat16() for array in normal(7, 333)]
    exact = getattr(torch.stack(tensors).double(), {"max": "amax"}.get(op, op))(0)
    reduced(tensors, op, algorithm)
    torch.testing.assert_close(tensors[0].double(), exact, rtol=0.05, atol=0.05)
    assert {bits(tensor) for tensor in tensors} == {bits(tensors[0])}


@in_one_process
@pytest.mark.parametrize("op", ["sum", "mean", "max"])
def test_a_nan_anywhere_wins(algorithm, op):
    arrays = normal(6, 50)
    arrays[4][17] = np.nan
    arrays[2][49] = -np.nan
    reduced(arrays, op, algorithm)
    for array in arrays:
        assert np.flatnonzero(np.isnan(array)).tolist() == [17, 49]


@in_one_process
@settings(max_examples=25, deadline=None)
@given(data=st.data(), size=st.integers(1, 9), op=st.sampled_from(["sum", "mean", "max"]))
def test_any_bits_at_all_end_equal_on_all_ranks(algorithm, data, size, op):
    """Infinities, NaNs of every payload, zeros of both signs: the operands' order matters, and is one order."""
    words = st.sampled_from([0, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00001, 0xFFC12345, 0x3F800000, 0x00000001])
    arrays = [np.array(data.draw(st.lists(words, min_size=21, max_size=21)), "uint32").view("f4") for _ in range(size)]
    with np.errstate(all="ignore"):
        reduced(arrays, op, algorithm)
    assert {bits(array) for array in arrays} == {bits(arrays[0])}


@of_every_size
def test_every_peer_is_sent_the_bytes_of_the_closed_form(algorithm, scheme, size):
    for length in (0, 1, 5, 840, 1001) if scheme == "local" else (1001,):
        ends = reduced(normal(size, length), "sum", algorithm, scheme=scheme)
        sent = [end.traffic.bytes_to for end in ends]
        if algorithm == "shared":
            assert not any(sent)
            continue
        problem = ProblemSize.on_one_node(size, length * 4, 4)
        forms = ALL_REDUCE.closed_forms_for(algorithm, problem, Links())
        assert sent == [forms.bytes_to(problem, rank) for rank in range(size)]


@over_both
def test_only_the_ranks_of_the_group_take_part(algorithm, scheme):
    arrays = [np.full(10, rank, "float32") for rank in (5, 0, 3)]

    async def main():
        async with opened(algorithm, 6, scheme) as ends:
            groups = [Group(ends[rank], (5, 0, 3), 1) for rank in (5, 0, 3)]
            await asyncio.gather(*(all_reduce(*pair, "sum", algorithm) for pair in zip(groups, arrays, strict=True)))
            return [end.traffic.bytes_sent for end in ends if end.rank not in (5, 0, 3)]

    assert asyncio.run(main()) == [0, 0, 0]
    assert all((array == 8).all() for array in arrays)


@over_both
async def test_groups_on_channels_of_their_own_run_at_once(algorithm, scheme):
    calls = []
    async with opened(algorithm, 4, scheme) as ends:
        for channel in range(8):
            for end in ends:
                group, array = Group(end, range(4), channel), np.full(100, 10.0**channel, "float64")
                calls.append((array, 4 * 10.0**channel, all_reduce(group, array, "sum", algorithm)))
        await asyncio.gather(*(call for _, _, call in calls))
    assert all((array == expected).all() for array, expected, _ in calls)


@over_both
async def test_calls_on_one_group_run_one_after_another(algorithm, scheme):
    arrays = [[np.full(30 + turn, rank * 10 + turn, "int64") for turn in range(6)] for rank in range(5)]

    async def rank(end):
        group = Group(end, range(5), 1)
        await asyncio.gather(*(all_reduce(group, array, "sum", algorithm) for array in arrays[end.rank]))

    async with opened(algorithm, 5, scheme) as ends:
        await asyncio.gather(*map(rank, ends))
    for row in arrays:
        assert [int(array[0]) for array in row] == [100 + 5 * turn for turn in range(6)]


@over_both
@pytest.mark.parametrize("size", [2, 3, 5, 8])
async def test_a_rank_that_dies_ends_the_call_on_all_others(algorithm, scheme, size):
    async with opened(algorithm, size, scheme) as ends:
        groups = [Group(end, range(size), 1) for end in ends[:-1]]
        calls = [asyncio.ensure_future(all_reduce(group, np.ones(9), "sum", algorithm)) for group in groups]
        await asyncio.sleep(0)
        kill(ends[-1])
        running = [owned(*pair) for pair in zip(ends, calls, strict=False)]
        ended = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 5)
        assert any(isinstance(error, PeerLost) and error.rank == size - 1 for error in ended)
        assert all(isinstance(error, PeerLost | PeerAborted) for error in ended)


@over_both
async def test_a_cancelled_call_breaks_the_group(algorithm, scheme):
    async with opened(algorithm, 3, scheme) as ends:
        group = Group(ends[0], range(3), 1)
        call = asyncio.ensure_future(all_reduce(group, np.ones(9), "sum", algorithm))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(BrokenGroup, match="fresh channel"):
            await all_reduce(group, np.ones(9), "sum", algorithm)


@over_both
async def test_a_bad_argument_is_refused_before_anything_is_sent(algorithm, scheme):
    bad = [(np.ones((4, 4))[:, 1], "sum"), (np.ones(4, "int32"), "mean"), (np.ones(4), "median"), ([1.0], "sum")]

    async with opened(algorithm, 2, scheme) as ends:
        groups = [Group(end, range(2), 1) for end in ends]
        for array, op in bad:
            with pytest.raises((ValueError, TypeError)):
                await all_reduce(groups[0], array, op, algorithm)
        assert ends[0].traffic.bytes_sent == 0
        arrays = [np.ones(4), np.ones(4)]
        await asyncio.gather(*(all_reduce(*pair, "sum", algorithm) for pair in zip(groups, arrays, strict=True)))
        assert all((array == 2).all() for array in arrays)
