"""Training without a flush over MPI: the delayed recurrences, whatever arrangement fits the ranks that were started,
and the order that timing decided, replayed.
"""

import asyncio

import pytest
import torch
from mpi4py import MPI

from pipelined.traces.file import write
from pipelined.training.segments.replay import of_rank, packed, read_orders
from tests.mpi.every_rank import THOROUGH, from_rank_0, full_elsewhere
from tests.numerics.delayed import delayed, double_buffered, pipedream
from tests.numerics.plain import Case
from tests.numerics.segments import assert_same, rank, segments
from transports import new_event_loop, open_transport

RANKS = MPI.COMM_WORLD.size
WIDTHS = [full_elsewhere(width, THOROUGH) for width in (1, 2) if RANKS % width == 0]


async def over_mpi(case, story, orders, compute):
    transport = await open_transport("mpi://")
    try:
        return await from_rank_0(transport, compute), await rank(case, transport, story, orders=orders)
    finally:
        await transport.close()


def run(case, story, orders=None, compute=lambda: None):
    """What rank 0 was to compute beside, and this rank's outcome."""
    torch.set_num_threads(1)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(over_mpi(case, story, orders, compute))


def order_of(case, outcome, path):
    """What every rank of a run did, as its trace has it."""
    events = MPI.COMM_WORLD.gather(outcome.events)
    if events:
        write(path, events)
    return MPI.COMM_WORLD.bcast(packed(read_orders(path, case.plan)) if events else None)


@pytest.mark.mpi
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("schedule", ["pipedream", "pipedream_2bw"])
def test_a_segment_gives_the_numbers_of_the_delayed_recurrence_over_mpi(schedule, width):
    depth = RANKS // width
    case = Case(schedule, depth, width, max(2, depth))
    version = pipedream(depth) if schedule == "pipedream" else double_buffered(case.microbatches)
    assert_same(*run(case, segments(range(4)), compute=lambda: delayed(case, 4, version)))


@pytest.mark.mpi
@pytest.mark.parametrize("width", WIDTHS)
def test_an_order_that_timing_decided_is_replayed_over_mpi_to_the_last_bit(width, tmp_path):
    case, story = Case("async_1f1b", RANKS // width, width, 3, dropout=0.2), segments(range(3), range(3, 5))
    _, first = run(case, story)
    orders = order_of(case, first, tmp_path / "first.json")
    _, again = run(case, story, of_rank(orders, MPI.COMM_WORLD.rank))
    assert order_of(case, again, tmp_path / "again.json") == orders
    for one, other in zip(first.reports, again.reports, strict=True):
        assert (one.loss, one.grad_norm, one.staleness) == (other.loss, other.grad_norm, other.staleness)
    for name, value in first.weights.items():
        assert torch.equal(value, again.weights[name]), name
