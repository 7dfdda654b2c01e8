"""The collectives between real processes: every algorithm, in lockstep and out of it."""

import asyncio
import sys
from functools import cache
from hashlib import sha256
from itertools import product

import numpy as np
import pytest
from mpi4py import MPI

from collectives import (
    Group,
    ProblemSize,
    all_gather,
    all_reduce,
    all_to_all,
    allocate,
    barrier,
    broadcast,
    reduce_scatter,
    segment,
)
from collectives.algorithms import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, AUTO, REDUCE_SCATTER
from tests.mpi.every_rank import SECONDS, full_elsewhere, of_every_rank, on_every_rank

WORLD = MPI.COMM_WORLD
EVERY_RANK = range(WORLD.size)

pytestmark = pytest.mark.mpi


def normal(length, rank, dtype="float32"):
    return np.random.default_rng((rank, length)).standard_normal(length).astype(dtype)


@cache
def exact(length, op):
    """What all ranks' numbers come to, in float64."""
    return getattr(np, op)([normal(length, rank).astype("f8") for rank in EVERY_RANK], axis=0)


def the_same_everywhere(array):
    return len(set(of_every_rank(sha256(array).digest()))) == 1


@pytest.mark.parametrize("algorithm", (AUTO, *ALL_REDUCE.names))
def test_the_sum_is_float64s_and_equal_on_all_ranks(algorithm):
    async def work(transport):
        group = Group(transport, EVERY_RANK, 1)
        for op, length in product(("sum", "mean", "max"), (0, 1, WORLD.size - 1, 1000, 300_007)):
            array = normal(length, WORLD.rank)
            await all_reduce(group, array, op, algorithm)
            np.testing.assert_allclose(array, exact(length, op), rtol=1e-5, atol=1e-5, err_msg=f"{op} of {length}")
            assert the_same_everywhere(array), f"{op} of {length}"

    on_every_rank(work)


async def functions_of_a_sum(group, array):
    """The Python functions that a sum called, coroutines that went on counted again."""
    called = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_qualname) if event == "call" else None)
    try:
        await all_reduce(group, array, "mean")
    finally:
        sys.setprofile(None)
    return called


@pytest.mark.skipif(WORLD.size != 2, reason="two ranks")
def test_a_short_sum_calls_few_functions():
    """Short sums became half as long again, unnoticed: each searched a table for what `auto` means, and took a lock."""

    async def work(transport):
        group, array = Group(transport, EVERY_RANK, 1), np.ones(256, np.float32)
        called = [await functions_of_a_sum(group, array) for _ in range(200)]
        fewest = min(called, key=len)
        every = of_every_rank(bytes([min(len(fewest), 255)]))  # of any sum, the rank that comes last waits for none
        assert min(map(ord, every)) <= 62, fewest

    on_every_rank(work)


@pytest.mark.parametrize("algorithm", ALL_REDUCE.with_closed_forms)
def test_sends_the_bytes_of_the_closed_form(algorithm):
    async def work(transport):
        group = Group(transport, EVERY_RANK, 1, patience=SECONDS)  # else a rank that waits long reports its call
        array = np.ones(100_003)
        await all_reduce(group, array, "sum", algorithm)
        problem = ProblemSize(group.nodes, array.nbytes, array.itemsize)
        expected = ALL_REDUCE.forms(algorithm).bytes_to(problem, WORLD.rank)
        assert transport.traffic.bytes_to == expected

    on_every_rank(work)


@pytest.mark.parametrize("algorithm", [full_elsewhere(name, WORLD.size <= 4) for name in (AUTO, *ALL_REDUCE.names)])
def test_many_calls_in_lockstep_never_mix(algorithm):
    """Two hundred of two ranks, and fewer of more, which take turns on few cores."""

    async def work(transport):
        group = Group(transport, EVERY_RANK, 1)
        array = np.array([1.0 + WORLD.rank, 0.0])
        for turn in range(400 // max(2, WORLD.size)):
            array[1] = turn * WORLD.rank
            await all_reduce(group, array, "mean", algorithm)
            assert array.tolist() == [(WORLD.size + 1) / 2, turn * (WORLD.size - 1) / 2]
            array[0] += WORLD.rank - (WORLD.size - 1) / 2

    on_every_rank(work)


@pytest.mark.parametrize("algorithm", (AUTO, *ALL_REDUCE.names))
def test_groups_of_some_ranks_run_at_once_with_those_of_all(algorithm):
    """Each pair of neighbours has a group of its own, as has the whole world in either order; all are busy at once.

    MPI makes communicators in blocking calls: made in the order in which each rank first needed them, these three
    groups once waited for one another in a circle.
    """

    async def work(transport):
        pairs = [(rank, (rank + 1) % WORLD.size) for rank in EVERY_RANK]
        everyone = [tuple(EVERY_RANK), tuple(reversed(EVERY_RANK))]
        groups = [
            Group(transport, ranks, channel)
            for channel, ranks in enumerate(pairs + everyone)
            if WORLD.rank in ranks and len(set(ranks)) == len(ranks)
        ]
        for group in groups if algorithm == "native" else ():
            await group.open_native()
        arrays = [np.full(5000, 1.0 + WORLD.rank) for _ in groups]
        await asyncio.gather(*(all_reduce(*pair, "sum", algorithm) for pair in zip(groups, arrays, strict=True)))
        for group, array in zip(groups, arrays, strict=True):
            assert (array == sum(group.ranks) + group.size).all()

    on_every_rank(work)


LENGTHS = [2000 * (rank % 3) + rank % 2 for rank in EVERY_RANK]  # rank 0 holds nothing


@pytest.mark.parametrize(("scatter", "gather"), [("ring", "ring"), ("halving", "doubling"), ("shared", "shared")])
def test_halves_by_given_lengths_send_the_bytes_of_the_closed_forms(scatter, gather):
    async def work(transport):
        group, rank = Group(transport, EVERY_RANK, 5), WORLD.rank
        low, high = sum(LENGTHS[:rank]), sum(LENGTHS[: rank + 1])
        for turn in range(3):
            array = np.arange(sum(LENGTHS)) * (rank + 1 + turn)
            exact = np.arange(sum(LENGTHS)) * sum(each + 1 + turn for each in EVERY_RANK)
            assert (await reduce_scatter(group, array, "sum", LENGTHS, scatter) == exact[low:high]).all()
            await all_gather(group, array, LENGTHS, gather)
            assert (array == exact).all()
        closed = 0
        for table, name in ((REDUCE_SCATTER, scatter), (ALL_GATHER, gather)) if scatter != "shared" else ():
            problem = ProblemSize(group.nodes, 8 * sum(LENGTHS), 8, LENGTHS)
            closed += sum(table.forms(name).bytes_to(problem, rank).values())
        assert transport.traffic.bytes_sent == 3 * closed

    on_every_rank(work)


def test_halves_and_the_others():
    async def work(transport):
        group, size, rank = Group(transport, EVERY_RANK, 5), WORLD.size, WORLD.rank
        array = await allocate(group, 100_001, "int64")
        array[:] = np.arange(array.size) + rank
        exact = np.arange(array.size) * size + size * (size - 1) // 2
        low, high = segment(array.size, size, rank)
        assert (await reduce_scatter(group, array) == exact[low:high]).all()
        await all_gather(group, array)
        assert (array == exact).all()

        for root in EVERY_RANK:
            shown = np.full(200_001, rank)
            await broadcast(group, shown, root)
            assert (shown == root).all()

        for algorithm in ALL_TO_ALL.names:
            incoming = [np.empty(source + rank << 14, "int32") for source in EVERY_RANK]
            outgoing = [np.full(rank + to << 14, 100 * rank + to, "int32") for to in EVERY_RANK]
            await all_to_all(group, outgoing, incoming, algorithm)
            assert all((got == 100 * source + rank).all() for source, got in enumerate(incoming))

    on_every_rank(work)


def test_no_rank_leaves_a_barrier_before_the_last_has_entered():
    async def work(transport):
        group, last = Group(transport, EVERY_RANK, 0), WORLD.size - 1
        for turn in range(20):
            count = np.array([turn], "int64")
            if WORLD.rank == last:
                for rank in range(last):
                    await transport.send(rank, ("turn", turn), count)
            await barrier(group)
            if WORLD.rank != last:
                into = np.zeros(1, "int64")
                await asyncio.wait_for(transport.receive(last, ("turn", turn), [into]), 5)
                assert into[0] == turn

    on_every_rank(work)
