"""Ring passes over nodes against a ring that is walked message by message, and exchanges against their sum."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import Links
from pipelined.sharding.search.network import GroupShape, Network


def walked(span, nbytes, near, far):
    """Seconds of a pass over a ring, simulated: each rank sends size - 1 parts, each when it is free and has it."""
    size = span.size
    links = [far if span.nodes > 1 and rank % span.ranks == span.ranks - 1 else near for rank in range(size)]
    free, has = [0.0] * size, [0.0] * size
    for _ in range(size - 1):
        starts = [max(pair) for pair in zip(free, has, strict=True)]
        free = [start + nbytes * link.beta for start, link in zip(starts, links, strict=True)]
        has = [free[rank - 1] + links[rank - 1].alpha for rank in range(size)]
    return max(has)


costs = st.floats(0, 1)


@given(st.integers(1, 5), st.integers(1, 6), costs, costs, costs, costs)
def test_a_pass_takes_what_the_walked_ring_takes(nodes, ranks, alpha, beta, slower_alpha, slower_beta):
    near, far, span = (
        Links(alpha, beta, 0),
        Links(alpha + slower_alpha, beta + slower_beta, 0),
        GroupShape(nodes, ranks),
    )
    length = 3.0 * span.size
    wanted = walked(span, 12.0, near, far) if span.size > 1 else 0.0
    assert Network(near, far).ring(span, length, False) == pytest.approx(wanted)


def test_a_ring_over_two_nodes_crosses_far_links_at_two_places():
    network = Network(Links(1e-6, 0, 0), Links(1e-3, 0, 0))
    assert network.ring(GroupShape(2, 16), 1.0, False) == pytest.approx(2e-3 + 29e-6)


def test_sums_add_what_arrives():
    plain, adding = (Network(Links(0, 0, 0.5)).ring(GroupShape(1, 4), 8.0, sums) for sums in (False, True))
    assert (plain, adding) == (0.0, 3 * 2 * 4 * 0.5)


def test_an_exchange_sends_one_message_to_each_of_the_others():
    network = Network(Links(1.0, 0.25, 0), Links(10.0, 0.5, 0))
    assert network.exchange(GroupShape(1, 1), 0.0) == 0.0
    assert network.exchange(GroupShape(1, 4), 12.0) == 3 * (1.0 + 16 * 0.25)
    assert network.exchange(GroupShape(2, 2), 12.0) == (1.0 + 16 * 0.25) + 2 * (10.0 + 16 * 0.5)
