"""The closed forms: against the rounds a network really takes, and against the formulas of the papers."""

import asyncio
from math import log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import Group, Links, ProblemSize, all_gather, all_reduce, barrier, reduce_scatter
from collectives.algorithms import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from collectives.cost_model import ring_pass_seconds, ring_seconds
from tests.unit.collectives.rounds import Rounds
from tests.virtual_time import virtual_seconds
from transports import open_local

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16)


def sent_by(name, size, rank, *sizes):
    """Bytes that one rank sends in all, by the closed form."""
    return sum(ALL_REDUCE.forms(name).bytes_to(ProblemSize.on_one_node(size, *sizes), rank).values())


def seconds_of(name, size, nbytes, *link):
    return ALL_REDUCE.forms(name).seconds(ProblemSize.on_one_node(size, nbytes), Links(*link))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ALL_REDUCE.with_closed_forms)
def test_steps_are_the_rounds_it_takes(name, size):
    network = Rounds(size)
    groups = [Group(end, range(size), 0, patience=60.0) for end in network.ends]
    arrays = [np.arange(400) + rank for rank in range(size)]
    rounds = network.run(*(all_reduce(*pair, "sum", name) for pair in zip(groups, arrays, strict=True)))
    assert rounds == ALL_REDUCE.forms(name).steps(ProblemSize.on_one_node(size, 3200))
    assert all((array == np.arange(400) * size + size * (size - 1) // 2).all() for array in arrays)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["ring", "multi_ring"])
def test_rings_send_the_least_that_any_all_reduce_can(name, size):
    nbytes = 720720 * 4
    assert {sent_by(name, size, rank, nbytes) for rank in range(size)} == {2 * (size - 1) * nbytes // size}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("length", [0, 1, 7, 1001])
def test_a_ring_of_uneven_segments_sends_as_much_in_all(size, length):
    total = sum(sent_by("ring", size, rank, length * 4, 4) for rank in range(size))
    assert total == 2 * (size - 1) * length * 4


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_rabenseifner_sends_the_least_at_powers_of_two(size):
    sent = {sent_by("rabenseifner", size, rank, 1 << 20) for rank in range(size)}
    assert sent == {2 * (size - 1) * (1 << 20) // size}


def test_rabenseifner_at_seven_folds_three_pairs():
    sent = [sent_by("rabenseifner", 7, rank, 400) for rank in range(7)]
    assert sent == [400, 600 + 400, 400, 600 + 400, 400, 600 + 400, 600]


def test_recursive_doubling_at_six_folds_two_pairs():
    sent = [sent_by("recursive_doubling", 6, rank, 100) for rank in range(6)]
    assert sent == [100, 300, 100, 300, 200, 200]


@pytest.mark.parametrize("name", ALL_REDUCE.with_closed_forms)
def test_more_bytes_or_dearer_links_never_cost_less(name):
    for size in SIZES:
        base = seconds_of(name, size, 1000, 1e-5, 1e-9, 1e-10)
        assert seconds_of(name, size, 2000, 1e-5, 1e-9, 1e-10) >= base
        assert seconds_of(name, size, 1000, 2e-5, 2e-9, 2e-10) >= base


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_prices_are_those_of_the_papers(size):
    alpha, beta, gamma, nbytes = 3e-5, 2e-9, 5e-10, 1 << 20
    share = (size - 1) / size * nbytes * (2 * beta + gamma)
    expected = {
        "ring": 2 * (size - 1) * alpha + share,
        "rabenseifner": 2 * log2(size) * alpha + share,
        "recursive_doubling": log2(size) * (alpha + nbytes * (beta + gamma)),
    }
    assert {name: seconds_of(name, size, nbytes, alpha, beta, gamma) for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize("size", [3, 5, 6, 7, 9])
def test_folding_costs_two_steps_of_the_whole_array(size):
    core = 1 << (size.bit_length() - 1)
    for name in ("rabenseifner", "recursive_doubling"):
        both = seconds_of(name, size, 1000, 1, 1, 1), seconds_of(name, core, 1000, 1, 1, 1)
        assert both[0] - both[1] == pytest.approx(2 + 3000)


@pytest.mark.parametrize("size", SIZES)
def test_auto_takes_the_fastest_at_every_length(size):
    links = Links(1e-5, 1e-9, 1e-10)
    for problem in (ProblemSize.on_one_node(size, nbytes) for nbytes in (0, 4, 1 << 10, 1 << 16, 1 << 20, 1 << 28)):
        least = min(ALL_REDUCE.forms(name).seconds(problem, links) for name in ALL_REDUCE.with_closed_forms)
        assert ALL_REDUCE.closed_forms_for("auto", problem, links).seconds(problem, links) == least


def test_auto_counts_steps_when_short_and_bytes_when_long():
    links = Links(alpha=1e-5, beta=1e-9, gamma=1e-10)
    assert ALL_REDUCE.fastest(ProblemSize.on_one_node(8, 8), links) == "recursive_doubling"
    assert ALL_REDUCE.fastest(ProblemSize.on_one_node(8, 1 << 26), links) == "rabenseifner"
    assert ALL_REDUCE.fastest(ProblemSize.on_one_node(7, 1 << 26), links) == "ring"


def test_an_unknown_algorithm_lists_the_known():
    with pytest.raises(ValueError, match="unknown all-reduce algorithm 'rings'; known: auto, hierarchical, multi"):
        ALL_REDUCE.find("rings")


def test_links_below_nothing_are_refused():
    with pytest.raises(ValueError, match="less than nothing"):
        Links(beta=-1e-9)


RINGS = [(ALL_REDUCE, 14, 7), (ALL_GATHER, 7, 0), (REDUCE_SCATTER, 7, 7)]
of_every_ring = pytest.mark.parametrize(("table", "hops", "reduced"), RINGS, ids=["reduce", "gather", "scatter"])


@of_every_ring
def test_a_ring_over_two_nodes_of_four_waits_for_far_links_at_two_places_only(table, hops, reduced):
    """By alpha a segment's longest way crosses every fourth link; by beta all segments pass one far link in turn."""
    problem, ring = ProblemSize((0,) * 4 + (4,) * 4, 8), table.forms("ring")
    crossings = -(-hops // 4)
    alpha = ring.seconds(problem, Links(1.0, 0.0, 0.0, far=Links(10.0, 0.0, 0.0)))
    assert alpha == 10.0 * crossings + hops - crossings
    beta = ring.seconds(problem, Links(0.0, 0.0, 0.0, far=Links(0.0, 10.0, 0.0)))
    assert beta == 10.0 * hops
    assert ring.seconds(problem, Links(0.0, 0.0, 1.0, far=Links(0.0, 0.0, 1.0))) == reduced


costs = st.floats(0, 1)


@given(st.integers(1, 5), st.integers(1, 6), st.booleans(), costs, costs, costs, costs, costs)
def test_a_pass_over_equal_nodes_takes_what_the_walked_ring_takes(
    nodes, ranks, sums, alpha, beta, gamma, slower_alpha, slower_beta
):
    links = Links(alpha, beta, gamma, far=Links(alpha + slower_alpha, beta + slower_beta, gamma))
    names = [node * ranks for node in range(nodes) for _ in range(ranks)]
    half = len(names) - 1
    steps = {"reduce_steps": half * sums, "gather_steps": half * (not sums)}
    walked = ring_seconds(names, 12 * len(names), links, **steps)
    assert ring_pass_seconds(nodes, ranks, 12 * len(names), links, sums=sums) == pytest.approx(walked)


SLOW_URL = "local://?delay=1ms&rate=1gbit&node=4&far-delay=5ms&far-rate=200mbit"
SLOW_LINKS = Links(1e-3, 8 / 1e9, 0.0, far=Links(5e-3, 8 / 2e8, 0.0))
CALLS = {
    ALL_REDUCE: lambda group, array: all_reduce(group, array, "sum", "ring"),
    ALL_GATHER: lambda group, array: all_gather(group, array, algorithm="ring"),
    REDUCE_SCATTER: lambda group, array: reduce_scatter(group, array, algorithm="ring"),
}


@pytest.mark.virtual
@of_every_ring
@pytest.mark.parametrize("floats", [1 << 10, 1 << 14, 1 << 19])
async def test_a_ring_over_two_nodes_of_four_takes_what_walking_it_says(table, hops, reduced, floats):
    """Short arrays by alpha, long ones by beta; adding takes no virtual time."""
    groups = [Group(end, range(8), 0, patience=1e6) for end in open_local(SLOW_URL, 8)]
    await asyncio.gather(*map(barrier, groups))
    await virtual_seconds(1.0)
    clock = asyncio.get_running_loop().time
    began, arrays = clock(), [np.zeros(floats, np.float32) for _ in groups]
    await asyncio.gather(*map(CALLS[table], groups, arrays))
    expected = table.forms("ring").seconds(ProblemSize(groups[0].nodes, 4 * floats), SLOW_LINKS)
    assert clock() - began == pytest.approx(expected, rel=5e-3)
    await asyncio.gather(*(group.transport.close() for group in groups))
