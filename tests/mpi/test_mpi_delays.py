"""Training without a flush over MPI: the delayed recurrences, whatever arrangement fits the ranks that were started."""

import asyncio

import pytest
import torch
from mpi4py import MPI

from tests.numerics.delayed import delayed, double_buffered, pipedream
from tests.numerics.plain import Case
from tests.numerics.stretched import assert_same, rank, stretches
from transports import new_event_loop, open_transport

RANKS = MPI.COMM_WORLD.size
WIDTHS = [width for width in (1, 2) if RANKS % width == 0]


async def over_mpi(case, story):
    transport = await open_transport("mpi://")
    try:
        return await rank(case, transport, story)
    finally:
        await transport.close()


@pytest.mark.mpi
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("schedule", ["pipedream", "pipedream_2bw"])
def test_a_stretch_gives_the_numbers_of_the_delayed_recurrence_over_mpi(schedule, width):
    torch.set_num_threads(1)
    depth = RANKS // width
    case = Case(schedule, depth, width, max(2, depth))
    version = pipedream(depth) if schedule == "pipedream" else double_buffered(case.microbatches)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        outcome = runner.run(over_mpi(case, stretches(range(4))))
    assert_same(delayed(case, 4, version), outcome)
