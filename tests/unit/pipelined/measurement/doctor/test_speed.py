"""Links are measured by all ranks together, between the pairs there are, and rank 0 hears what was found."""

import asyncio

import pytest

from collectives import Links, ProblemSize
from collectives.algorithms import ALL_REDUCE
from pipelined.actors.actor import Actor
from pipelined.aio.clock import RealClock
from pipelined.measurement.doctor.speed import MESSAGE_SIZES, SUM_SIZES, measure, pairs
from transports import new_event_loop
from transports.local import world


@pytest.mark.parametrize(
    ("nodes", "near", "far"),
    [((0, 0), (0, 1), None), ((0, 1), None, (0, 1)), ((0, 1, 0, 1), (0, 2), (0, 1)), ((0, 1, 1), (1, 2), (0, 1))],
)
def test_the_lowest_pair_of_each_kind_is_taken(nodes, near, far):
    assert pairs(nodes) == (near, far)


def measure_on(ranks, nodes=None):
    async def rank(transport):
        async with Actor(transport) as actor:
            return await measure(actor, RealClock(), lambda line: None)

    async def all_ranks():
        transports = world(ranks)
        if nodes:
            for transport in transports:
                transport.__class__ = type("Split", (transport.__class__,), {"nodes": nodes})
        return await asyncio.gather(*map(rank, transports))

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(all_ranks())


def test_rank_0_hears_of_messages_and_sums():
    speed, *others = measure_on(3)
    assert others == [None, None] and speed.far is None and speed.near.ranks == (0, 1)
    assert speed.near.alpha > 0 and speed.near.beta >= 0
    assert [row.nbytes for row in speed.sums] == list(SUM_SIZES) and len(MESSAGE_SIZES) >= 3
    for row in speed.sums:
        assert row.algorithm == ALL_REDUCE.fastest(ProblemSize.on_one_node(3, row.nbytes), Links())
        assert row.algbw == row.nbytes / row.seconds and row.busbw == pytest.approx(row.algbw * 4 / 3)


def test_links_between_nodes_are_measured_where_there_are_some():
    speed, *_ = measure_on(3, nodes=(0, 1, 1))
    assert (speed.near.ranks, speed.far.ranks) == ((1, 2), (0, 1))
