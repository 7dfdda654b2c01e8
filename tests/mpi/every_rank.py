"""How a test of the ranks' own begins: one transport, opened by all of them, and a limit on the whole."""

import asyncio

from transports import new_event_loop, open_transport

SECONDS = 60


def on_every_rank(work):
    """Run `work(transport)` here, as all ranks do."""

    async def main():
        async with await open_transport("mpi://") as transport:
            await asyncio.wait_for(work(transport), SECONDS)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
