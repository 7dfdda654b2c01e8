"""Pipelined equals plain over MPI: whatever arrangement fits the number of ranks that were started.

Several arrangements at one number of ranks for each MPI, one at the others.
"""

import asyncio

import pytest
import torch
from mpi4py import MPI

from tests.mpi.every_rank import THOROUGH, from_rank_0
from tests.numerics.arrangements import sampled
from tests.numerics.plain import assert_same, pipelined, plain
from transports import new_event_loop, open_transport


async def rank(case):
    """What one process computes, and what this rank ends with."""
    transport = await open_transport("mpi://")
    try:
        return await from_rank_0(transport, lambda: plain(case)), await pipelined(case, transport)
    finally:
        await transport.close()


@pytest.mark.mpi
@pytest.mark.parametrize("case", sampled(every=29 if THOROUGH else 200, ranks=[MPI.COMM_WORLD.size]))
def test_an_arrangement_gives_the_numbers_of_one_process_over_mpi(case):
    torch.set_num_threads(1)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        assert_same(*runner.run(rank(case)))
