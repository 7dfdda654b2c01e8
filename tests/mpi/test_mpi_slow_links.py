"""Over slow links MPI keeps its clauses, too: those on ends and cancelled calls, in which time matters most."""

import asyncio
import time

import pytest
from mpi4py import MPI

from tests.conformance import cancelling, endings
from tests.conformance.clauses import clauses_of, hold
from tests.conformance.neighbours import left_of, right_of, sending, wait_for_all
from tests.mpi.every_rank import LONG, full_elsewhere, sampled
from transports import new_event_loop, open_transport
from transports.emulation.delayed_sender import MAX_LATENESS_S

CLAUSES = {**clauses_of(cancelling), **clauses_of(endings)}
TOO_LONG = [name for name in CLAUSES if any(word in name for word in LONG)]
SAMPLED = [
    *sampled([name for name in CLAUSES if name not in TOO_LONG], 2),
    *(full_elsewhere(name, False) for name in TOO_LONG),
]


def run(clause, url):
    """Open this rank's end, as all ranks do, and hold it to the clause."""

    async def main():
        await hold([await open_transport(url)], clause)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("clause", SAMPLED)
def test_clause(clause):
    run(CLAUSES[clause], "mpi://?delay=1ms&jitter=1ms&rate=10gbit")


@pytest.mark.mpi(min_size=2)
def test_a_message_takes_the_delay():
    took = []

    async def clause(end):
        await wait_for_all(end, "all here")
        start = time.perf_counter()
        async with sending(end.send(right_of(end), ("k",), b"slow")):
            await end.receive(left_of(end), ("k",))
        took.append(time.perf_counter() - start)

    run(clause, "mpi://?delay=50ms")
    assert MPI.COMM_WORLD.allreduce(took[0], MPI.MAX) >= 0.05 - MAX_LATENESS_S
