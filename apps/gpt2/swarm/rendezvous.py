"""The directory of a swarm's job, on rank 0: its address goes to all ranks, and other machines may join by it.

Ranks of one machine use the loopback interface, unless --listen gives rank 0 an address that others can reach.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from apps.swarm.address import LOOPBACK
from apps.swarm.joining import endpoint_at
from pipelined.actors.agree import agree, broadcast
from pipelined.aio.clock import RealClock
from pipelined.aio.nursery import Nursery
from pipelined.directory import serve_directory
from pipelined.errors import UsageError
from transports import Transport
from transports.rpc import Endpoint


@asynccontextmanager
async def meeting_point(
    transport: Transport, listen: str | None, begin: Callable[[str], Awaitable[None]]
) -> AsyncIterator[str]:
    """The directory's address. Rank 0 serves the directory during its block, so the other ranks must finish first.

    Args:
        listen: where rank 0 accepts requests; None: on this machine alone.
        begin: called on rank 0 with the address, before other ranks receive it.
    Raises:
        AgreedError: on every rank: rank 0 cannot listen there, or there are several machines and no --listen.
    """
    endpoint = await agree(transport, "listen", _opened(transport, listen))
    if endpoint is None:
        yield await broadcast(transport, "directory")
        return
    async with endpoint, Nursery() as tasks:
        serving = tasks.create_task(serve_directory(endpoint, RealClock()))
        await begin(endpoint.address)
        yield await broadcast(transport, "directory", endpoint.address)
        serving.cancel()


async def _opened(transport: Transport, listen: str | None) -> Endpoint | None:
    machines = len(set(transport.nodes))
    if machines > 1 and listen is None:
        fact = f"there are several machines, but rank 0 listens on loopback only (machines: {machines})"
        raise UsageError(f"{fact}; add --listen tcp://HOST:0 with an address of rank 0's machine")
    return None if transport.rank else await endpoint_at(listen or LOOPBACK)
