"""A directory, or the holder of a lease, in a process of its own; for tests that kill it.

python -m tests.unit.pipelined.membership.directory.processes serve URL JOURNAL | hold URL SECONDS
"""

import asyncio
import sys

from pipelined.aio.clock import RealClock
from pipelined.membership.directory import LeaseLost, open_directory, serve_directory
from tests.conformance.directories import kept
from transports.rpc import open_endpoint


async def serve(url, journal):
    async with await open_endpoint(url) as endpoint:
        await serve_directory(endpoint, RealClock(), journal)


async def hold(url, seconds):
    """Put the key `held`, and say when its lease was lost."""
    clock = RealClock()
    async with await open_endpoint("tcp://127.0.0.1:0") as endpoint:
        directory = open_directory(url, endpoint, clock)
        try:
            async with kept(directory, float(seconds), clock) as lease:
                await directory.transact({}, {"held": b""}, lease=lease)
                await asyncio.get_running_loop().create_future()
        except LeaseLost:
            print("lost", flush=True)


if __name__ == "__main__":
    asyncio.run({"serve": serve, "hold": hold}[sys.argv[1]](*sys.argv[2:]))
