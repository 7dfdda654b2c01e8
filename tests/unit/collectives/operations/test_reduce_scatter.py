"""reduce_scatter and all_gather by every algorithm, evenly cut and by given lengths, with the bytes of closed forms."""

import asyncio
from itertools import accumulate
from math import log2

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import (
    Group,
    Links,
    Mismatch,
    ProblemSize,
    all_gather,
    all_reduce,
    all_to_all,
    allocate,
    reduce_scatter,
    segments,
)
from collectives.algorithms import ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER
from tests.unit.collectives.owned import owned
from tests.unit.collectives.rounds import Rounds
from transports.local import world
from transports.testing import local_world, tcp_world


def on_all(ends, call):
    async def main():
        groups = [Group(end, range(len(ends)), 2) for end in ends]
        return await asyncio.gather(*(call(group) for group in groups))

    return asyncio.run(asyncio.wait_for(main(), 30))


@pytest.mark.parametrize("algorithm", REDUCE_SCATTER.names)
@settings(max_examples=30, deadline=None)
@given(size=st.integers(1, 9), length=st.integers(0, 50), op=st.sampled_from(["sum", "max", "mean"]))
def test_reduce_scatter_keeps_this_ranks_segment(algorithm, size, length, op):
    arrays = [np.random.default_rng(rank).standard_normal(length) for rank in range(size)]
    exact = getattr(np, op)(np.array(arrays), axis=0)
    ends = local_world(size, shared_memory=True)
    kept = on_all(ends, lambda group: reduce_scatter(group, arrays[group.rank], op, algorithm=algorithm))
    for rank, (low, high) in enumerate(segments(length, size)):
        np.testing.assert_allclose(kept[rank], exact[low:high], atol=1e-12)
        assert kept[rank].base is arrays[rank] or high == low
    assert sent_by(ends) == closed_form(REDUCE_SCATTER, algorithm, [8 * (b - a) for a, b in segments(length, size)])


@pytest.mark.parametrize("algorithm", ALL_GATHER.names)
@settings(max_examples=30, deadline=None)
@given(size=st.integers(1, 9), length=st.integers(0, 50))
def test_all_gather_fills_in_the_others_segments(algorithm, size, length):
    whole, ends, arrays = np.arange(length, dtype="int16"), local_world(size, shared_memory=True), []
    for low, high in segments(length, size):
        arrays.append(np.full(length, -1, "int16"))
        arrays[-1][low:high] = whole[low:high]
    on_all(ends, lambda group: all_gather(group, arrays[group.rank], algorithm=algorithm))
    assert all((array == whole).all() for array in arrays)
    assert sent_by(ends) == closed_form(ALL_GATHER, algorithm, [2 * (b - a) for a, b in segments(length, size)])


def sent_by(ends):
    return [end.traffic.bytes_to for end in ends]


def closed_form(table, algorithm, lengths):
    """The bytes that each rank sends to each, if the ranks hold segments of so many bytes; none in shared memory."""
    if algorithm not in table.with_closed_forms:
        return [{} for _ in lengths]
    problem = ProblemSize.on_one_node(len(lengths), sum(lengths), 1, lengths)
    return [table.forms(algorithm).bytes_to(problem, rank) for rank in range(len(lengths))]


@pytest.mark.parametrize("lengths", [(3, 1, 4, 1, 5), (7, 0, 0), (0, 0, 0, 2), (5, 6)], ids=str)
def test_closed_forms_by_hand(lengths):
    """Of a ring all but one segment to the next rank; by doubling 0 to 4, 0 1 to 3, 0 to 1 from rank 0 of five."""
    size, total = len(lengths), sum(lengths)
    for rank in range(size):
        after = (rank + 1) % size
        gathered, reduced = total - lengths[after], total - lengths[rank]
        assert closed_form(ALL_GATHER, "ring", lengths)[rank] == ({after: gathered} if gathered else {})
        assert closed_form(REDUCE_SCATTER, "ring", lengths)[rank] == ({after: reduced} if reduced else {})
        received = [sent.get(rank, 0) for sent in closed_form(ALL_GATHER, "doubling", lengths)]
        assert sum(received) == total - lengths[rank]
        assert sum(closed_form(REDUCE_SCATTER, "halving", lengths)[rank].values()) == total - lengths[rank]
    if size == 5:
        assert closed_form(ALL_GATHER, "doubling", lengths)[0] == {4: 3, 3: 4, 1: 3}
        assert closed_form(REDUCE_SCATTER, "halving", lengths)[0] == {1: 1, 2: 5, 4: 5}


@pytest.mark.parametrize("size", (1, 2, 3, 4, 5, 7, 8, 9, 16))
@pytest.mark.parametrize(
    ("table", "algorithm"), [(t, n) for t in (ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL) for n in t.with_closed_forms]
)
def test_steps_are_the_rounds_it_takes(table, algorithm, size):
    network, arrays = Rounds(size), [np.ones((size, 3)) for _ in range(size)]
    calls = {
        ALL_GATHER: lambda group, array: all_gather(group, array, algorithm=algorithm),
        REDUCE_SCATTER: lambda group, array: reduce_scatter(group, array, algorithm=algorithm),
        ALL_TO_ALL: lambda group, array: all_to_all(group, list(array), list(array.copy()), algorithm),
    }
    groups = [Group(end, range(size), 0, patience=60.0) for end in network.ends]
    rounds = network.run(*(calls[table](*pair) for pair in zip(groups, arrays, strict=True)))
    assert rounds == table.forms(algorithm).steps(ProblemSize.on_one_node(size, 24 * size))


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_prices_are_those_of_the_papers(size):
    alpha, beta, gamma, nbytes = 3e-5, 2e-9, 5e-10, 1 << 20
    sent, few, many = (size - 1) / size * nbytes, log2(size) * alpha, (size - 1) * alpha
    asked = ProblemSize.on_one_node(size, nbytes), Links(alpha, beta, gamma)
    assert ALL_GATHER.forms("ring").seconds(*asked) == pytest.approx(many + sent * beta)
    assert ALL_GATHER.forms("doubling").seconds(*asked) == pytest.approx(few + sent * beta)
    assert REDUCE_SCATTER.forms("ring").seconds(*asked) == pytest.approx(many + sent * (beta + gamma))
    assert REDUCE_SCATTER.forms("halving").seconds(*asked) == pytest.approx(few + sent * (beta + gamma))
    assert ALL_TO_ALL.forms("pairwise").seconds(*asked) == pytest.approx(many + sent * beta)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_one_after_the_other_is_the_ring(size):
    one = [torch.randn(5, 70_001, generator=torch.manual_seed(rank)).bfloat16() for rank in range(size)]
    two = [tensor.clone() for tensor in one]

    async def halves(group):
        await reduce_scatter(group, one[group.rank], "mean", algorithm="ring")
        await all_gather(group, one[group.rank], algorithm="ring")
        await all_reduce(group, two[group.rank], "mean", "ring")

    on_all(world(size), halves)
    assert all(torch.equal(first, second) for first, second in zip(one, two, strict=True))


CUTS = ([5], [3, 4], [0, 7], [7, 0], [0, 0], [1, 0, 5], [0, 0, 9], [4, 0, 0, 2, 9], [6000, 0, 9000], [0, 0, 9000, 1])
of_every_cut = pytest.mark.parametrize("lengths", CUTS, ids=str)


async def worlds(scheme, size):
    return await tcp_world(size) if scheme == "tcp" else local_world(size, shared_memory=scheme == "shared")


def contributions(lengths):
    """On each rank an array of which only its own segment is filled, and the array of all segments."""
    whole, ends = np.arange(1.0, 1 + sum(lengths)), list(accumulate(lengths))
    arrays = [np.zeros(sum(lengths)) for _ in lengths]
    for array, high, length in zip(arrays, ends, lengths, strict=True):
        array[high - length : high] = whole[high - length : high]
    return arrays, whole


def every(table):
    """Every algorithm on the transports that have it."""
    over = [(scheme, name) for name in table.names for scheme in ("local", "tcp") if name != "shared"]
    return pytest.mark.parametrize(("scheme", "algorithm"), [*over, ("shared", "shared")])


@every(ALL_GATHER)
@of_every_cut
async def test_given_lengths_are_gathered_and_their_bytes_counted(scheme, algorithm, lengths):
    ends, (arrays, whole) = await worlds(scheme, len(lengths)), contributions(lengths)
    groups = [Group(end, range(len(ends)), 2, piece=1 << 14, window=1 << 15) for end in ends]
    for _ in range(2):  # the second call shows whether the first left a message behind
        calls = (all_gather(*pair, lengths, algorithm) for pair in zip(groups, arrays, strict=True))
        await asyncio.wait_for(asyncio.gather(*calls), 30)
        assert all((array == whole).all() for array in arrays)
    assert sent_by(ends) == closed_form(ALL_GATHER, algorithm, [16 * length for length in lengths])
    await asyncio.gather(*(end.close() for end in ends))


@every(REDUCE_SCATTER)
@of_every_cut
async def test_given_lengths_are_reduced_and_their_bytes_counted(scheme, algorithm, lengths):
    ends, size = await worlds(scheme, len(lengths)), len(lengths)
    groups = [Group(end, range(size), 2, piece=1 << 14, window=1 << 15) for end in ends]
    for seed in range(2):
        arrays = [np.random.default_rng((rank, seed)).integers(-9, 9, sum(lengths)) for rank in range(size)]
        exact = sum(arrays)
        calls = (reduce_scatter(*pair, "sum", lengths, algorithm) for pair in zip(groups, arrays, strict=True))
        kept = await asyncio.wait_for(asyncio.gather(*calls), 30)
        for part, high, length in zip(kept, accumulate(lengths), lengths, strict=True):
            assert part.tolist() == exact[high - length : high].tolist()
    assert sent_by(ends) == closed_form(REDUCE_SCATTER, algorithm, [16 * length for length in lengths])
    await asyncio.gather(*(end.close() for end in ends))


@pytest.mark.parametrize("size", [2, 3])
async def test_arrays_in_shared_memory_are_gathered_and_reduced_where_they_lie(size):
    """Two all-reduces between them use the same windows: no one may read what another has overwritten."""
    groups = [Group(end, range(size), 2, window=1 << 16) for end in local_world(size, shared_memory=True)]
    lengths = [100_000 + 7 * rank for rank in range(size)]
    exact = np.arange(sum(lengths)) * (size * (size + 1) // 2)

    async def rank(group):
        array = await allocate(group, sum(lengths), "int64")
        for _ in range(3):
            array[:] = np.arange(sum(lengths)) * (group.rank + 1)
            await reduce_scatter(group, array, "sum", lengths)
            await all_gather(group, array, lengths)
            assert (array == exact).all()
            other = np.arange(30_000) * (group.rank + 1)
            await all_reduce(group, other)
            assert (other == exact[:30_000]).all()

    await asyncio.wait_for(asyncio.gather(*map(rank, groups)), 30)


@pytest.mark.parametrize("collective", [all_gather, reduce_scatter])
async def test_an_unknown_algorithm_lists_the_known(collective):
    with pytest.raises(ValueError, match=r"algorithm 'rings'; known: auto, .*ring, shared"):
        await collective(Group(world(2)[0], (0, 1), 0), np.ones(8), algorithm="rings")


@pytest.mark.parametrize("lengths", [(3, 4), (3, 4, 1), (9, -1), (3.0, 5.0), ()])
@pytest.mark.parametrize("collective", [all_gather, reduce_scatter])
async def test_lengths_that_do_not_make_up_the_array_are_refused(collective, lengths):
    with pytest.raises(ValueError, match=rf"lengths: \[{', '.join(map(str, lengths))}\], elements: 8, ranks: 2"):
        await collective(Group(world(2)[0], (0, 1), 0), np.ones(8), lengths=lengths)


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [(all_gather, name) for name in ALL_GATHER.names] + [(reduce_scatter, name) for name in REDUCE_SCATTER.names],
)
@pytest.mark.parametrize("scheme", ["shared", "tcp"])
@pytest.mark.parametrize(("here", "there"), [((7, 0), (0, 7)), ((0, 7), (7, 0)), ((3, 4), (7, 0)), ((3, 4), (4, 3))])
async def test_ranks_that_give_other_lengths_are_told_both(scheme, collective, algorithm, here, there):
    """Where each rank believes that the other sends it nothing, neither would receive what the other sends."""
    if (scheme, algorithm) == ("tcp", "shared"):
        pytest.skip("TCP shares no memory")
    ends = await worlds(scheme, 2)
    calls = [
        asyncio.ensure_future(collective(Group(end, (0, 1), 0), np.ones(7), lengths=lengths, algorithm=algorithm))
        for end, lengths in zip(ends, (here, there), strict=True)
    ]
    running = (owned(*pair) for pair in zip(ends, calls, strict=True))
    ended = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 5)
    told = [str(error) for error in ended if isinstance(error, Mismatch)]
    assert told
    assert all(f"cut {a}+{b}" in told[0] for a, b in (here, there))
    await asyncio.gather(*(end.close() for end in ends))
