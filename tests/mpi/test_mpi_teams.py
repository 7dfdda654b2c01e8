"""Teams equal the plain loop over MPI: through the memory that ranks of a node share, and by messages alone.

A rank compares its own pieces of every parameter. Each arrangement fits one number of ranks. At 8, which is slowest on
few cores, only the first way is taken in every run.
"""

import asyncio

import pytest
import torch
from mpi4py import MPI

from tests.mpi.every_rank import from_rank_0, full_elsewhere
from tests.numerics.plain import plain
from tests.numerics.teams import TeamCase, assert_pieces, team_trained
from transports import new_event_loop, open_transport

CASES = [
    TeamCase("one_f_one_b", 1, 1, 2, layers=1, dropout=0.2),
    TeamCase("gpipe", 1, 1, 1, layers=1, tensor=3, layout="mixed"),
    TeamCase("chimera", 2, 1, 2, layers=1, layout="mixed+zero3"),
    TeamCase("zb_h1", 2, 1, 2, layers=1, tensor=4, layout="mixed", dropout=0.2),
    TeamCase("one_f_one_b", 2, 2, 1, layers=1, layout="data"),
]


async def rank(case, all_reduce):
    """What one process computes, and what this rank ends with; its own rank, too."""
    transport = await open_transport("mpi://")
    try:
        expected = await from_rank_0(transport, lambda: plain(case))
        return expected, await team_trained(case, transport, all_reduce), transport.rank
    finally:
        await transport.close()


@pytest.mark.mpi
@pytest.mark.parametrize("all_reduce", ["auto", full_elsewhere("ring", MPI.COMM_WORLD.size <= 4)])
@pytest.mark.parametrize("case", [case for case in CASES if case.plan.world_size == MPI.COMM_WORLD.size], ids=str)
def test_a_team_gives_the_numbers_of_one_process_over_mpi(case, all_reduce):
    torch.set_num_threads(1)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        assert_pieces(case, *runner.run(rank(case, all_reduce)))
