"""Every transport with ranks that can share a loop keeps every clause."""

import asyncio
import inspect

import pytest

from tests.conformance import endings
from tests.conformance.clauses import EVERYWHERE, WHERE_RANKS_DIE, clauses_of, hold
from tests.conformance.worlds import endpoint_world, local_world, tcp_world
from transports import new_event_loop, schemes

WORLDS = {"local": local_world, "tcp": tcp_world, "endpoints": endpoint_world}


def run(opened, clause):
    """Open a world on one loop, and hold all its ends to the clause."""

    async def main():
        world = opened()
        await hold(await world if inspect.isawaitable(world) else world, clause)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())


def cases():
    """Each clause in worlds of two and three; 256 MiB go between two in every run, round three with --full.

    Between endpoints, which have clauses of their own, worlds of three suffice.
    """
    for scheme in WORLDS:
        for clause in EVERYWHERE:
            for size in (2, 3) if scheme != "endpoints" else (3,):
                huge = "256_mib" in clause and size == 3
                yield pytest.param(scheme, clause, size, marks=[pytest.mark.full] * huge)


@pytest.mark.parametrize(("scheme", "clause", "size"), [*cases()])
def test_clause(scheme, clause, size):
    run(lambda: WORLDS[scheme](size), EVERYWHERE[clause])


@pytest.mark.parametrize("clause", clauses_of(endings))
def test_clause_on_endings_where_large_messages_stay_at_their_senders(clause):
    run(lambda: tcp_world(3, max_kept=64 << 10), endings.__dict__[clause])


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("clause", WHERE_RANKS_DIE)
@pytest.mark.parametrize("scheme", WORLDS)
def test_clause_on_death(scheme, clause, size):
    run(lambda: WORLDS[scheme](size), WHERE_RANKS_DIE[clause])


def test_every_transport_is_under_the_suite():
    assert set(schemes()) - set(WORLDS) == {"mpi"}, "give WORLDS a line for the new transport (tests/mpi runs over mpi)"
