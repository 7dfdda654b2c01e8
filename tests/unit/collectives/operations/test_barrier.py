"""No rank leaves a barrier before every rank has entered it, in a logarithm of rounds."""

import asyncio

import pytest

from collectives import Group, barrier
from tests.unit.collectives.rounds import Rounds
from transports.local import world


@pytest.mark.parametrize("size", range(1, 10))
async def test_no_rank_leaves_before_all_have_entered(size):
    order = []

    async def rank(end):
        for _ in range(7 * end.rank % 5):
            await asyncio.sleep(0)
        order.append("came")
        await barrier(Group(end, range(size), 0))
        order.append("left")

    await asyncio.gather(*map(rank, world(size)))
    assert order == ["came"] * size + ["left"] * size


@pytest.mark.parametrize("size", range(1, 18))
def test_it_takes_log_rounds(size):
    network = Rounds(size)
    assert network.run(*(barrier(Group(end, range(size), 0)) for end in network.ends)) == (size - 1).bit_length()
