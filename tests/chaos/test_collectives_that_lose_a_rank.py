"""A rank dies, aborts or closes in the middle of an all-reduce: the others end, with the whole sum or an error."""

import asyncio
import inspect
import random
from enum import Enum

import numpy as np
import pytest

from collectives import Group, Mismatch, all_reduce
from tests.conformance.worlds import kill, local_world, tcp_world
from tests.unit.collectives.owned import owned
from transports import Closed, PeerAborted, PeerLost, new_event_loop

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
            match self.fault:
                case Fault.KILLED:
                    kill(self.transport)
                case Fault.ABORTED:
                    await self.transport.abort("it was told to")
                case Fault.CLOSED:
                    await self.transport.close()
            raise Ended


async def lose_one(world, size, algorithm, fault, rng, length=9000):
    ends = world(size)
    ends = await ends if inspect.isawaitable(ends) else ends
    odd, moved = rng.randrange(size), rng.randrange(0, 40)
    arrays = [np.random.default_rng(rank).standard_normal(length) for rank in range(size)]
    exact = sum(arrays)
    groups = [(Victim if rank == odd else Group)(end, range(size), 3, piece=PIECE) for rank, end in enumerate(ends)]
    groups[odd].left, groups[odd].fault = moved, fault
    calls = [all_reduce(group, array, "sum", algorithm) for group, array in zip(groups, arrays, strict=True)]
    owners = [call if rank == odd else owned(ends[rank], call) for rank, call in enumerate(calls)]
    outcome = await asyncio.wait_for(asyncio.gather(*owners, return_exceptions=True), 20)
    for rank, error in enumerate(outcome):
        if error is None:
            np.testing.assert_allclose(arrays[rank], exact, rtol=1e-12, atol=1e-12)
        elif rank == odd:
            assert isinstance(error, (Ended, Closed)), error  # the lane of the victim that failed first decides
        else:
            assert isinstance(error, PeerLost | PeerAborted), error
            assert error.rank == odd or f"lost rank {odd}" in str(error) or "it was told to" in str(error)
    assert all(error is None for error in outcome) or outcome[odd] is not None
    for end in ends:
        await end.close()


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("scheme", WORLDS)
def test_every_other_rank_ends_with_the_whole_sum_or_an_error_that_names_the_lost_rank(scheme, algorithm, fault):
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
def test_over_tcp_unequal_calls_end_on_all_ranks(size):
    async def main():
        ends = await tcp_world(size)
        groups = [Group(end, range(size), 0, patience=0.02) for end in ends]
        arrays = [np.ones(500 + (group.rank == 1)) for group in groups]
        calls = [
            owned(*ended)
            for ended in zip(
                ends, [all_reduce(*pair, "sum", "ring") for pair in zip(groups, arrays, strict=True)], strict=True
            )
        ]
        errors = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 20)
        for end in ends:
            await end.close()
        return errors

    for error in asyncio.run(main()):
        assert isinstance(error, Mismatch | PeerAborted) and "500 float64" in str(error) and "501 float64" in str(error)
