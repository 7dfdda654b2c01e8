"""The connection of a process to its system: its endpoint, its directory, which may start later, its name. No torch."""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pipelined.aio.clock import Clock, RealClock
from pipelined.errors import UsageError
from pipelined.membership.addresses import listen_url
from pipelined.membership.directory import Directory, open_directory
from pipelined.membership.directory.client.retry import MIN_PATIENCE_S
from transports import TransportError
from transports.rpc import Endpoint, open_endpoint


@dataclass(frozen=True, slots=True)
class LocalMember:
    """This process as a member of the system.

    Args:
        name: unique among the processes of its role.
        endpoint: sends and serves its requests.
        directory: this process's client of the directory.
    """

    name: str
    endpoint: Endpoint
    directory: Directory
    clock: Clock


@asynccontextmanager
async def connected(url: str, listen: str | None = None) -> AsyncIterator[tuple[Endpoint, Directory]]:
    """An endpoint and the directory, which may start later: a request is repeated for 30 s, then raises CutOff.

    Args:
        url: of the directory.
        listen: as in `listen_url`.
    Raises:
        UsageError: the endpoint cannot listen there, or no other machine could connect to it.
    """
    async with await endpoint_at(listen_url(url, listen)) as endpoint:
        async with open_directory(url, endpoint, RealClock()) as directory:
            yield endpoint, directory


@asynccontextmanager
async def local_member(url: str, endpoint: Endpoint, name: str, lease_s: float) -> AsyncIterator[LocalMember]:
    """A member of the system: a request to its directory without a reply for a lease's length raises CutOff.

    Args:
        url: of the directory.
        name: "": HOST-PID.
    """
    clock = RealClock()
    async with open_directory(url, endpoint, clock, max(MIN_PATIENCE_S, lease_s)) as directory:
        yield LocalMember(name or f"{socket.gethostname()}-{os.getpid()}", endpoint, directory, clock)


async def endpoint_at(url: str, option: str | None = None) -> Endpoint:
    """Open an endpoint at this URL.

    Args:
        option: what the user gave, for the message. Default: --listen with the URL.
    Raises:
        UsageError: it cannot listen there.
    """
    try:
        return await open_endpoint(url)
    except (ValueError, TransportError) as error:
        raise UsageError(f"{option or f'--listen {url}'}: {error}") from error
