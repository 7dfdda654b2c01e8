"""Ring passes over the ranks of nodes, priced as the collectives price them, and exchanges against their sum."""

import pytest

from collectives import Links
from pipelined.sharding.search.network import GroupShape, Network


def test_a_ring_over_two_nodes_crosses_far_links_at_two_places():
    network = Network(Links(1e-6, 0, 0, far=Links(1e-3, 0, 0)))
    assert network.ring(GroupShape(2, 16), 1.0, False) == pytest.approx(2e-3 + 29e-6)


def test_sums_add_what_arrives():
    plain, adding = (Network(Links(0, 0, 0.5)).ring(GroupShape(1, 4), 8.0, sums) for sums in (False, True))
    assert (plain, adding) == (0.0, 3 * 2 * 4 * 0.5)


def test_an_exchange_sends_one_message_to_each_of_the_others():
    network = Network(Links(1.0, 0.25, 0, far=Links(10.0, 0.5, 0)))
    assert network.exchange(GroupShape(1, 1), 0.0) == 0.0
    assert network.exchange(GroupShape(1, 4), 12.0) == 3 * (1.0 + 16 * 0.25)
    assert network.exchange(GroupShape(2, 2), 12.0) == (1.0 + 16 * 0.25) + 2 * (10.0 + 16 * 0.5)
