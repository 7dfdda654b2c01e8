"""The directory of a system that the ranks of a job form: rank 0 serves it, and sends the others its address."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from collectives.objects import broadcast_object
from pipelined.actors.agree import agree
from pipelined.aio.clock import RealClock
from pipelined.errors import UsageError
from pipelined.measurement.timed.line import serve_line
from pipelined.membership.connection import endpoint_at
from pipelined.membership.directory import serve_directory
from transports import Nursery, Transport
from transports.rpc import Endpoint

LOOPBACK = "tcp://127.0.0.1:0"


@asynccontextmanager
async def directory_of_rank0(
    transport: Transport, listen: str | None, publish: Callable[[str], Awaitable[None]]
) -> AsyncIterator[str]:
    """The directory's address. Rank 0 serves the directory during its block, so the other ranks must finish first.

    Args:
        listen: where rank 0 accepts requests; None: on this machine alone.
        publish: called on rank 0 with the address, before other ranks receive it.
    Raises:
        AgreedError: on every rank: rank 0 cannot listen there, or there are several machines and no --listen.
    """
    endpoint = await agree(transport, "listen", _endpoint_of_rank0(transport, listen))
    if endpoint is None:
        yield await broadcast_object(transport, "directory")
        return
    async with endpoint, Nursery() as tasks:
        serve_line(endpoint)
        serving = tasks.create_task(serve_directory(endpoint, RealClock()))
        await publish(endpoint.address)
        yield await broadcast_object(transport, "directory", endpoint.address)
        serving.cancel()


async def _endpoint_of_rank0(transport: Transport, listen: str | None) -> Endpoint | None:
    machines = len(set(transport.nodes))
    if machines > 1 and listen is None:
        fact = f"there are several machines, but rank 0 listens on loopback only (machines: {machines})"
        raise UsageError(f"{fact}; add --listen tcp://HOST:0 with an address of rank 0's machine")
    return None if transport.rank else await endpoint_at(listen or LOOPBACK)
