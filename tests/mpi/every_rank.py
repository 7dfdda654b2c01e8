"""How a test of the ranks' own begins: one transport, opened by all of them, and a limit on the whole.

And what runs at which number of ranks: everything at one number for each MPI, a part of it at the others.
"""

import asyncio
import time

import pytest
from mpi4py import MPI

from transports import new_event_loop, open_transport

SECONDS = 60
WORLD = MPI.COMM_WORLD
OPEN_MPI = MPI.get_vendor()[0] == "Open MPI"
THOROUGH = WORLD.size == (4 if OPEN_MPI else 2)
"""Whether this MPI runs every case at this number of ranks: Open MPI is started at no other, MPICH is fastest here."""
LONG = "256_mib", "at_any_moment"
"""Of clauses that take longest, what their names hold: they move most bytes, or cancel at every moment in turn."""


def on_every_rank(work):
    """Run `work(transport)` here, as all ranks do."""

    async def main():
        async with await open_transport("mpi://") as transport:
            await asyncio.wait_for(work(transport), SECONDS)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())


def full_elsewhere(value, always):
    """A parameter of every run where `always` holds for this MPI and number of ranks, else of --full and slices."""
    return pytest.param(value, marks=() if always else pytest.mark.full)


def sampled(clauses, way=0):
    """Clauses as parameters: all of them at one number of ranks; of the short ones a sixth at 8, the others at 3.

    Args:
        way: another number for each way in which the clauses are kept, so that each way takes others.
    """
    short = [name for name in clauses if not any(word in name for word in LONG)]
    taken = [name for at, name in enumerate(short) if ((at + way) % 6 == 0) == (WORLD.size > 4)]
    return [full_elsewhere(name, THOROUGH or name in taken) for name in clauses]


def of_every_rank(data):
    """These bytes of each rank, by rank; as many on all of them.

    A rank sleeps until the last has called this. In MPI's own wait it would take the core that the others compute on.
    """
    everyones = bytearray(len(data) * WORLD.size)
    gathered = WORLD.Iallgather(data, everyones)
    while not gathered.Test():
        time.sleep(0.0005)
    return [bytes(everyones[at : at + len(data)]) for at in range(0, len(everyones), len(data))]


async def from_rank_0(transport, compute):
    """What rank 0 computes, on every rank.

    The others wait in their loops: within MPI's own broadcast they would take the cores that rank 0 computes on.
    """
    value = compute() if transport.rank == 0 else None
    for rank in range(1, transport.world_size) if transport.rank == 0 else ():
        await transport.send(rank, ("computed",))
    if transport.rank:
        await transport.receive(0, ("computed",))
    return WORLD.bcast(value)
