"""MPI keeps every clause, one rank a process; and what only MPI has: tags, pieces, its own collectives."""

import asyncio

import numpy as np
import pytest
from mpi4py import MPI

from tests.conformance.clauses import EVERYWHERE, hold
from transports import Block, Closed, new_event_loop, open_transport
from transports._mpi import MpiTransport

WORLD = MPI.COMM_WORLD
EVERY_RANK = range(WORLD.size)


def run(clause, opening=None):
    """Open this rank's end, as all ranks do, and hold it to the clause."""

    async def main():
        await hold([await (opening or open_transport("mpi://"))], clause)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("clause", EVERYWHERE)
def test_clause(clause):
    run(EVERYWHERE[clause])


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("clause", ["every_dtype_comes_as_it_went", "buffers_come_in_the_order_sent"])
def test_what_exceeds_a_piece_is_still_one_message(clause):
    run(EVERYWHERE[clause], MpiTransport.open(WORLD, piece=1000))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("clause", ["keys_may_be_asked_for_in_any_order", "messages_with_one_key_come_in_the_order_sent"])
@pytest.mark.parametrize("inline", [0, 1 << 20])
def test_where_a_body_travels_makes_no_difference(clause, inline):
    run(EVERYWHERE[clause], MpiTransport.open(WORLD, inline=inline))
