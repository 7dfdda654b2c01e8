"""Ranks on several nodes: every byte between and inside them is the closed form's, and results are equal everywhere."""

import asyncio

import numpy as np
import pytest

from collectives import Group, Links, ProblemSize, all_reduce
from collectives.algorithms import ALL_REDUCE
from tests.conformance.worlds import local_world
from tests.unit.collectives.rounds import Rounds

NODES = {
    "3+2+1": (0, 0, 0, 3, 3, 5),
    "mixed": (0, 1, 0, 1, 0, 5),
    "2+2": (0, 0, 2, 2),
    "4+4+4": (0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8),
    "1+1+1": (0, 1, 2),
    "5": (0, 0, 0, 0, 0),
    "1+7": (0, 1, 1, 1, 1, 1, 1, 1),
}


def reduced(nodes, length, op="sum", piece=1 << 20):
    ends = local_world(len(nodes), nodes)
    arrays = [np.random.default_rng(rank).standard_normal(length).astype("float32") for rank in range(len(nodes))]
    exact = getattr(np, op)(np.array(arrays, "float64"), axis=0)

    async def main():
        groups = [Group(end, range(len(nodes)), 2, piece=piece) for end in ends]
        calls = (all_reduce(*pair, op, "hierarchical") for pair in zip(groups, arrays, strict=True))
        await asyncio.wait_for(asyncio.gather(*calls), 30)

    asyncio.run(main())
    return ends, arrays, exact


@pytest.mark.parametrize("op", ["sum", "mean", "max"])
@pytest.mark.parametrize("nodes", NODES.values(), ids=NODES)
def test_agrees_with_float64_and_on_all_ranks_to_the_last_bit(nodes, op):
    for length, piece in ((1, 1 << 20), (1000, 100), (1001, 1 << 20)):
        _, arrays, exact = reduced(nodes, length, op, piece)
        np.testing.assert_allclose(arrays[0], exact, rtol=1e-5, atol=1e-5)
        assert len({array.tobytes() for array in arrays}) == 1


@pytest.mark.parametrize("nodes", NODES.values(), ids=NODES)
def test_every_peer_is_sent_the_bytes_of_the_closed_form(nodes):
    for length in (1, 5, 840, 1001):
        ends, _, _ = reduced(nodes, length)
        sent = [end.traffic.bytes_to for end in ends]
        assert sent == [
            ALL_REDUCE.find("hierarchical").bytes_to(ProblemSize(nodes, length * 4, 4), rank)
            for rank in range(len(nodes))
        ]


@pytest.mark.parametrize("nodes", NODES.values(), ids=NODES)
def test_between_nodes_only_a_ring_of_nodes_sends(nodes):
    length = 720
    ends, _, _ = reduced(nodes, length)
    far = [(end.rank, peer, sent) for end in ends for peer, sent in end.traffic.bytes_to.items()]
    crossing = sum(sent for rank, peer, sent in far if nodes[rank] != nodes[peer])
    assert crossing == 2 * (len(set(nodes)) - 1) * length * 4


@pytest.mark.parametrize("nodes", NODES.values(), ids=NODES)
def test_takes_no_more_rounds_than_its_closed_form(nodes):
    network = Rounds(len(nodes))
    for end in network.ends:
        end.nodes = nodes
    groups = [Group(end, range(len(nodes)), 0, patience=60.0) for end in network.ends]
    arrays = [np.full(60, rank) for rank in range(len(nodes))]
    calls = (all_reduce(*pair, "sum", "hierarchical") for pair in zip(groups, arrays, strict=True))
    even = len({nodes.count(node) for node in nodes}) == 1
    rounds, most = network.run(*calls), ALL_REDUCE.find("hierarchical").steps(ProblemSize(nodes, 480))
    assert rounds == most if even else rounds <= most


def test_a_groups_nodes_are_its_own_ranks():
    ends = local_world(6, NODES["3+2+1"])
    assert Group(ends[4], (5, 4, 1, 3), 0).nodes == (0, 1, 2, 1)


def test_auto_takes_it_where_links_between_nodes_are_slow_and_only_there():
    near, far = Links(2e-6, 1e-10, 5e-11), Links(5e-5, 8e-9, 5e-11)
    nodes = NODES["4+4+4"]
    assert ALL_REDUCE.fastest(ProblemSize(nodes, 1 << 24), Links(2e-6, 1e-10, 5e-11, far)) == "hierarchical"
    assert ALL_REDUCE.fastest(ProblemSize(nodes, 1 << 10), Links(2e-6, 1e-10, 5e-11, far)) == "hierarchical"
    assert ALL_REDUCE.fastest(ProblemSize.on_one_node(len(nodes), 1 << 24), near) != "hierarchical"


def test_auto_runs_what_it_chose_for_these_nodes():
    nodes = NODES["4+4+4"]
    ends, links = local_world(12, nodes), Links(2e-6, 1e-10, 5e-11, Links(5e-5, 8e-9, 5e-11))
    arrays = [np.ones(50_000) for _ in nodes]

    async def main():
        groups = [Group(end, range(12), 0, links=links) for end in ends]
        await asyncio.gather(*(all_reduce(*pair) for pair in zip(groups, arrays, strict=True)))

    asyncio.run(main())
    assert [end.traffic.bytes_to for end in ends] == [
        ALL_REDUCE.find("hierarchical").bytes_to(ProblemSize(nodes, 400_000, 8), rank) for rank in range(12)
    ]
    assert all((array == 12).all() for array in arrays)


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize(
    ("most", "log"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (7, 2), (8, 3), (9, 3), (16, 4), (17, 4)]
)
def test_trees_are_as_deep_as_the_logarithm_rounded_down(most, log, nodes):
    ranks = (0,) * most + tuple(range(most, most + nodes - 1))
    assert ALL_REDUCE.find("hierarchical").steps(ProblemSize(ranks, 8)) == 2 * log + 2 * (nodes - 1)
