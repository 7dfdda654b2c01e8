"""Every algorithm of all_gather, reduce_scatter and all_to_all, over the transports that have it.

Each moves the right data, sends the bytes and takes the steps of its closed forms, and ends where ranks call it
differently. `test_every_all_reduce.py` does the same for all_reduce, which has more arguments.
"""

import asyncio
from itertools import accumulate
from math import log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import Group, Links, Mismatch, ProblemSize, all_gather, all_to_all, reduce_scatter, segments
from collectives.algorithms import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, TABLES
from tests.conformance.worlds import local_world, tcp_world
from tests.unit.collectives.owned import owned
from tests.unit.collectives.rounds import Rounds


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
    problem = ProblemSize((0,) * len(lengths), sum(lengths), 1, lengths)
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


def over(table):
    """Every algorithm of a table with each transport that has it."""
    by_messages = [(scheme, name) for name in table.names for scheme in ("local", "tcp") if name != "shared"]
    return [*by_messages, ("shared", "shared")]


def every(table):
    return pytest.mark.parametrize(("scheme", "algorithm"), over(table))


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


@every(ALL_TO_ALL)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
async def test_all_to_all_delivers_each_array_and_sends_its_bytes(scheme, algorithm, size):
    """Rank i has (i + 2j) mod 4 elements for rank j, also none, and many for one."""
    lengths = [[(i + 2 * j) % 4 + 9000 * (i == j + 1) for j in range(size)] for i in range(size)]
    ends = await worlds(scheme, size)
    groups = [Group(end, range(size), 2, window=1 << 15) for end in ends]
    for turn in range(2):  # the second call shows whether the first left a message behind
        outgoing = [[np.full(lengths[i][j], 10 * i + j + turn) for j in range(size)] for i in range(size)]
        incoming = [[np.empty(lengths[i][j], int) for i in range(size)] for j in range(size)]
        calls = (all_to_all(group, outgoing[group.rank], incoming[group.rank], algorithm) for group in groups)
        await asyncio.wait_for(asyncio.gather(*calls), 30)
        assert all((incoming[j][i] == 10 * i + j + turn).all() for i in range(size) for j in range(size))
    problems = [ProblemSize((0,) * size, 16 * sum(row), 16, row) for row in lengths]
    forms = ALL_TO_ALL.forms(algorithm) if algorithm in ALL_TO_ALL.with_closed_forms else None
    assert sent_by(ends) == [forms.bytes_to(problem, rank) if forms else {} for rank, problem in enumerate(problems)]
    await asyncio.gather(*(end.close() for end in ends))


@pytest.mark.parametrize(
    ("table", "scheme", "algorithm"),
    [
        (name, *how)
        for name, table in (("all-gather", ALL_GATHER), ("reduce-scatter", REDUCE_SCATTER))
        for how in over(table)
    ],
)
@pytest.mark.parametrize(("here", "there"), [((7, 0), (0, 7)), ((0, 7), (7, 0)), ((3, 4), (7, 0)), ((3, 4), (4, 3))])
async def test_ranks_that_give_other_lengths_raise_an_error_with_both(table, scheme, algorithm, here, there):
    """Where each rank believes that the other sends it nothing, neither would receive what the other sends."""
    ends, collective = await worlds(scheme, 2), {"all-gather": all_gather, "reduce-scatter": reduce_scatter}[table]
    calls = [
        asyncio.ensure_future(collective(Group(end, (0, 1), 0), np.ones(7), lengths=lengths, algorithm=algorithm))
        for end, lengths in zip(ends, (here, there), strict=True)
    ]
    running = (owned(*pair) for pair in zip(ends, calls, strict=True))
    ended = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 5)
    errors = [str(error) for error in ended if isinstance(error, Mismatch)]
    assert errors
    assert all(f"cut {a}+{b}" in errors[0] for a, b in (here, there))
    await asyncio.gather(*(end.close() for end in ends))


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_an_unknown_algorithm_lists_the_known(table):
    with pytest.raises(ValueError, match=rf"algorithm 'rings'; known: auto, .*{table.names[-1]}"):
        table.find("rings")


def test_every_table_is_under_a_suite():
    assert set(TABLES.values()) == {ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER}, "give the new table clauses"
