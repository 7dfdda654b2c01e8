"""Ring passes over the ranks of nodes, priced as the collectives price them, and exchanges against their sum."""

from dataclasses import replace

import pytest

from collectives import Links
from collectives.cost_model import MemoryCosts
from pipelined.sharding.search.matmul import ROWS, RingPasses
from pipelined.sharding.search.network import GroupShape, Network


def test_a_ring_over_two_nodes_crosses_far_links_at_two_places():
    network = Network(Links(1e-6, 0, 0, far=Links(1e-3, 0, 0)))
    assert network.passes(GroupShape(2, 16), RingPasses("", ROWS, 1.0, 1)) == pytest.approx(2e-3 + 29e-6)


def test_sums_add_what_arrives():
    network = Network(Links(0, 0, 0.5))
    gather, reduce_scatter = (network.passes(GroupShape(1, 4), RingPasses("", ROWS, 8.0, 1, sums)) for sums in (0, 1))
    assert (gather, reduce_scatter) == (0.0, 3 * 2 * 4 * 0.5)


def test_an_exchange_sends_one_message_to_each_of_the_others():
    network = Network(Links(1.0, 0.25, 0, far=Links(10.0, 0.5, 0)))
    assert network.exchange(GroupShape(1, 1), 0.0, 0.0) == 0.0
    assert network.exchange(GroupShape(1, 4), 12.0, 16.0) == 3 * (1.0 + 16 * 0.25)
    assert network.exchange(GroupShape(2, 2), 12.0, 16.0) == (1.0 + 16 * 0.25) + 2 * (10.0 + 16 * 0.5)


def test_between_ranks_that_share_memory_each_move_has_the_price_of_its_collective():
    memory = MemoryCosts(all_gather=(1, 0), reduce_scatter=(10, 0), all_reduce=(100, 0), all_to_all=(1000, 2))
    plain = Links(1e-3, 1e-6, 1e-7)
    network, without = Network(replace(plain, memory=memory)), Network(plain)
    ring = RingPasses("update", ROWS, length=8, passes=9, sums=4, all_reduces=1)
    assert network.passes(GroupShape(1, 4), ring) == 4 * 1 + 3 * 10 + 1 * 100
    assert network.exchange(GroupShape(1, 4), elements=6, part=8) == 1000 + 2 * 4 * 8
    for group in (GroupShape(2, 2), GroupShape(1, 1)):
        assert network.passes(group, ring) == without.passes(group, ring)
        assert network.exchange(group, 6, 8) == without.exchange(group, 6, 8)
