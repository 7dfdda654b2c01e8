"""How a test of the ranks' own begins: one transport, opened by all of them, and a limit on the whole."""

import asyncio

from mpi4py import MPI

from transports import new_event_loop, open_transport

SECONDS = 60
WORLD = MPI.COMM_WORLD


def on_every_rank(work):
    """Run `work(transport)` here, as all ranks do."""

    async def main():
        async with await open_transport("mpi://") as transport:
            await asyncio.wait_for(work(transport), SECONDS)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())


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
