"""A rank dies, aborts or hangs up in the middle of an all-reduce: all others raise, with their arrays as they were, and
can run it again among themselves.
"""

import asyncio
import inspect
import random
from enum import Enum

import numpy as np
import pytest

from collectives import Group, Mismatch, all_reduce
from transports import Closed, PeerAborted, PeerLost, TransportError, new_event_loop
from transports.local import world as local_world
from transports.tcp import world as tcp_world

ALGORITHMS = ("hierarchical", "multi_ring", "rabenseifner", "recursive_doubling", "ring")
WORLDS = {"local": local_world, "tcp": tcp_world}
PIECE = 1 << 12


class Fault(Enum):
    KILLED = "kill"
    ABORTED = "abort"
    CLOSED = "close"


class Ended(Exception):
    """How the victim itself leaves."""


class Victim(Group):
    """A rank that ends before it sends or receives its next piece, once it has moved so many."""

    left, fault = 10**9, Fault.KILLED

    async def send(self, to, view):
        await self._live()
        await super().send(to, view)

    async def receive(self, source, view):
        await self._live()
        await super().receive(source, view)

    async def _live(self):
        self.left -= 1
        if self.left < 0:
            ending = getattr(self.transport, self.fault.value)
            done = ending(*(["it was told to"] if self.fault is Fault.ABORTED else []))
            if inspect.isawaitable(done):
                await done
            raise Ended


async def lose_one(world, size, algorithm, fault, rng, length=9000):
    ends = world(size)
    ends = await ends if inspect.isawaitable(ends) else ends
    odd, moved = rng.randrange(size), rng.randrange(0, 12)
    arrays = [np.random.default_rng(rank).standard_normal(length) for rank in range(size)]
    before = [array.copy() for array in arrays]
    groups = [(Victim if rank == odd else Group)(end, range(size), 3, piece=PIECE) for rank, end in enumerate(ends)]
    groups[odd].left, groups[odd].fault = moved, fault
    calls = [all_reduce(group, array, "sum", algorithm) for group, array in zip(groups, arrays, strict=True)]
    outcome = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 20)
    left = [rank for rank in range(size) if rank != odd]
    if outcome[odd] is None:  # it had less to move than that
        assert outcome == [None] * size
        assert all(np.allclose(array, sum(before)) for array in arrays)
    else:
        assert isinstance(outcome[odd], (Ended, Closed)), outcome[odd]  # whichever of its lanes failed first
        for rank in left:
            assert isinstance(outcome[rank], PeerAborted if fault is Fault.ABORTED else PeerLost), outcome[rank]
            assert outcome[rank].rank == odd
            assert (arrays[rank] == before[rank]).all()
        if fault is not Fault.ABORTED:
            again = [all_reduce(Group(ends[rank], left, 4), arrays[rank]) for rank in left]
            await asyncio.wait_for(asyncio.gather(*again), 20)
            assert all(np.allclose(arrays[rank], sum(before[each] for each in left)) for rank in left)
    for end in ends:
        await end.close()


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("scheme", WORLDS)
def test_all_survivors_raise_and_keep_what_they_had(scheme, algorithm, fault):
    rng = random.Random(f"{scheme} {algorithm} {fault}")
    for size in (2, 3, 5):
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(lose_one(WORLDS[scheme], size, algorithm, fault, rng))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("scheme", WORLDS)
def test_whatever_the_piece(scheme, algorithm, seed):
    rng = random.Random(f"{scheme} {algorithm} {seed}")
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(lose_one(WORLDS[scheme], rng.randrange(2, 8), algorithm, rng.choice(list(Fault)), rng))


@pytest.mark.parametrize("size", [2, 4])
def test_over_tcp_ranks_that_mean_different_things_all_hear_of_it(size):
    async def main():
        ends = await tcp_world(size)
        groups = [Group(end, range(size), 0, patience=0.02) for end in ends]
        arrays = [np.ones(500 + (group.rank == 1)) for group in groups]
        calls = [all_reduce(*pair, "sum", "ring") for pair in zip(groups, arrays, strict=True)]
        errors = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 20)
        for end in ends:
            await end.close()
        assert all((array == 1).all() for array in arrays)
        return errors

    for error in asyncio.run(main()):
        assert isinstance(error, Mismatch) and "500 float64" in str(error) and "501 float64" in str(error)
        assert not isinstance(error, TransportError)
