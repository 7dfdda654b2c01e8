"""A walk along the messages of moves gives the closed forms of equal messages, and carries what unequal ones delay."""

import pytest

from collectives import Links
from collectives.cost_model import MemoryCosts, ring_seconds
from pipelined.sharding import LinkWalk, Mesh, Shards, path, path_between

UNIT = Links(1.0, 0.25, 0.0)
"""Of elements of 4 bytes: 1 s for a message, and 1 s for an element."""
MESH = Mesh("a=2 b=4")


def walked(*paths, ranks=8, **arguments):
    walk = LinkWalk(ranks, **arguments)
    for path_taken in paths:
        walk.carry(path_taken)
    return walk.ready


@pytest.mark.parametrize(
    ("source", "target"),
    [("S0:b", "S1:b"), ("S0:b", ""), ("P:b", "S0:b"), ("P:b", ""), ("P:a S0:b", "S1:a S0:b"), ("S0:a", "S0:a S1:b")],
)
def test_of_equal_messages_it_is_the_price(source, target):
    links = Links(5e-3, 1e-6, 3e-7)
    way = path(MESH, (64, 64), source, target)
    assert walked(way, links=links) == [pytest.approx(way.seconds(links))] * 8


def test_a_ring_over_two_nodes_takes_what_the_walk_of_a_ring_gives():
    links = Links(1e-3, 1e-9, 1e-10, far=Links(5e-3, 4e-8, 0.0))
    summed = path(Mesh("a=8"), (1 << 15,), "P:a", "")
    priced = ring_seconds((0, 0, 0, 0, 4, 4, 4, 4), 4 << 15, links, reduce_steps=7, gather_steps=7)
    assert max(walked(summed, links=links, node=4)) == pytest.approx(priced)


FIRST = path_between(Shards(Mesh("a=2 b=2"), (4, 8), "S1:a S0:b"), Shards(Mesh("rows=2 b=2"), (4, 8), "S0:rows S0:b"))


def test_a_long_message_delays_the_ranks_that_wait_for_it():
    """From columns to rows, rank 0 sends 4 elements to ranks 0 and 1, rank 1 to 2 and 3, rank 2 as 0, rank 3 as 1.

    A message takes 1 s, and an element 1 s on its link. In step k a rank sends to the rank k after it, when it has
    received the message of the step before:

        received in   rank 0   1   2   3
        step 1             1   5   5   1    0 and 1 send 4 elements
        step 2            10   5   5  10    1 and 2, which begin at 5
        step 3            10  10  15  11    2 and 3; 0 sends nothing, so 3 has that at 10 + 1

    The closed form of equal messages would be 3 messages and 8 elements: 11 s.
    """
    assert walked(FIRST, ranks=4, links=UNIT) == [10, 10, 15, 11]
    assert FIRST.seconds(UNIT) == pytest.approx(11, rel=0.01)


def test_a_rank_that_ends_a_move_early_begins_the_next_early():
    """Ranks 0 and 1 exchange 8 elements from 10 s on, and do not wait for rank 2, which sends its 8 from 15 s on.

    Rank 3 is ready at 11 s, but its last message to rank 2 leaves until 14 s.
    """
    second = path(Mesh("rows=2 b=2"), (4, 8), "S0:rows S0:b", "S0:rows")
    assert walked(FIRST, second, ranks=4, links=UNIT) == [19, 19, 14 + 9, 15 + 9]


def test_messages_to_one_rank_leave_one_after_another():
    """Segments of 1, 2 and 2 elements go round a ring of 3, in two steps.

    After the first, ranks are ready at 2.5, 1.5 and 2.5 s. The link from rank 1 to 2 is free at 2 s; so the 1 element
    that rank 1 sends on arrives at 2 + 1 + 0.5 s.
    """
    gathered = path(Mesh("a=3"), (5,), "S0:a", "")
    assert walked(gathered, ranks=3, links=Links(0.5, 0.25, 0.0)) == [5.0, 5.0, 3.5]


def test_a_message_waits_for_those_of_the_move_before():
    """Rank 0 sends 2 elements and rank 1 sends 3, so the links are busy for 2 and 3 s, also where ranks are ready."""
    uneven = path_between(Shards(Mesh("a=2"), (5,), "S0:a"), Shards(Mesh("a=2"), (5,), ""))
    assert [uneven.source.size(rank) for rank in range(2)] == [2, 3]
    walk = LinkWalk(2, UNIT)
    walk.carry(uneven)
    assert walk.ready == [4, 3], "2 and 3 elements, and a message"
    walk.ready = [0.0, 0.0]
    walk.carry(uneven)
    assert walk.ready == [3 + 4, 2 + 3]


def test_ranks_that_are_ready_later_end_later_and_a_message_carries_bytes_of_its_own():
    walk = LinkWalk(4, UNIT, message_bytes=8)
    walk.ready = [3.0] * 4
    walk.carry(path(Mesh("a=4"), (4,), "S0:a", ""))
    assert walk.seconds == 3 + 3 * (1 + 1 + 2)


def test_through_memory_the_ranks_of_a_node_wait_for_the_last_of_them():
    memory = MemoryCosts((2.0, 0.5), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0))
    links = Links(1.0, 0.25, 0.0, memory=memory)
    walk = LinkWalk(4, links)
    walk.ready = [0.0, 7.0, 1.0, 2.0]
    walk.carry(path(Mesh("a=2 b=2"), (8,), "S0:b", ""))
    assert walk.ready == [7 + 2 + 16] * 2 + [2 + 2 + 16] * 2
