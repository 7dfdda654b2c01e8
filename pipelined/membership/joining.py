"""How a process joins its system, a swarm or another: its endpoint, the directory, and the record of what is trained.

A process waits for the directory, reads there what is trained (the first trainer writes it), and refuses to take part
where something else is trained. No torch.
"""

import os
import re
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Protocol, Self
from urllib.parse import urlsplit

from pipelined.aio.clock import RealClock
from pipelined.aio.progress import MOMENT_S, Say, reported_wait
from pipelined.directory import Conflict, Directory, open_directory
from pipelined.errors import UsageError
from pipelined.membership.node import Node
from transports import TransportError
from transports.rpc import Endpoint, open_endpoint

TASK = "subject"
"""Key in the directory: what is trained, in the program's own form."""
SWARM = "swarm"
"""Key in the directory: the unique name of this swarm. Peers claim directories of checkpoints under it."""
MOST_PORT = 65535
DISCARD_PORT = 9
"""The port of a datagram socket that sends nothing (RFC 863)."""


class TaskRecord(Protocol):
    """What is trained, as the directory keeps it."""

    def pack(self) -> bytes:
        """The directory's record."""
        ...

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Read the directory's record. Raises UsageError: it is none of this release."""
        ...

    def differences(self, other: Self) -> str:
        """What differs in another task, in words."""
        ...


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
async def member_node(url: str, endpoint: Endpoint, name: str, lease_s: float) -> AsyncIterator[Node]:
    """A member of the system: a request to its directory without a reply for a lease's length raises CutOff.

    Args:
        url: of the directory.
        name: "": HOST-PID.
    """
    clock = RealClock()
    async with open_directory(url, endpoint, clock, max(MOMENT_S, lease_s)) as directory:
        yield Node(name or f"{socket.gethostname()}-{os.getpid()}", endpoint, directory, clock)


async def endpoint_at(url: str) -> Endpoint:
    """Open an endpoint at this URL. Raises UsageError: it cannot listen there."""
    try:
        return await open_endpoint(url)
    except (ValueError, TransportError) as error:
        raise UsageError(f"--listen {url}: {error}") from error


async def publish_task(directory: Directory, task: TaskRecord, swarm: str = "", settings: str = "flags") -> None:
    """Write what is trained to the directory, or check that the directory has the same.

    Args:
        task: what this process trains.
        swarm: the swarm's name, if it begins here. Default: a random name.
        settings: what the user gave to this process, for the message: flags or arguments.
    Raises:
        UsageError: the directory has another training.
    """
    record = task.pack()
    try:
        await directory.transact({TASK: 0}, {TASK: record, SWARM: (swarm or secrets.token_hex(8)).encode()})
    except Conflict as error:
        if (entry := error.found[TASK]) is None:
            return await publish_task(directory, task, swarm, settings)
        if (theirs := task.unpack(entry.value)) != task:
            fact = f"the directory has another training ({task.differences(theirs)})"
            raise UsageError(f"{fact}; give the same {settings}, or another coordinator") from None


async def read_task(directory: Directory, url: str, say: Say) -> bytes:
    """Read what is trained from the directory; waits until the first trainer has written it."""
    async with reported_wait(described(url), say):
        view = await directory.read(TASK)
    if TASK in view.entries:
        return view.entries[TASK].value
    async with reported_wait("the first trainer, which writes what is trained", say):
        async for changes in directory.watch(TASK, view.revision):
            for change in changes:
                if change.entry is not None:
                    return change.entry.value
    raise AssertionError("a watch does not end")


def check_coordinator(url: str, argument: str) -> None:
    """Refuse a tcp:// address of a directory without a host and a port from 1 to 65535; other schemes pass.

    Args:
        argument: the setting or flag that gives the address, for the message.
    Raises:
        UsageError: it is no such address.
    """
    if url.startswith("tcp:"):
        found = re.fullmatch(r"tcp://[^/?@]+:([0-9]{1,9})", url)
        if found is None:
            raise UsageError(f"{argument} {url} is no address; write tcp://HOST:PORT")
        if not 1 <= int(found[1]) <= MOST_PORT:
            raise UsageError(
                f"{argument} {url} has no port from 1 to {MOST_PORT}; give the address that the coordinator printed"
            )


def described(url: str) -> str:
    """The directory, for messages, without a password."""
    return "the directory at " + re.sub("//[^/]*@", "//", url)


def listen_url(url: str, listen: str | None) -> str:
    """The URL at which a process listens.

    Args:
        url: of the directory.
        listen: None: the local address from which this machine reaches the directory.
    Raises:
        UsageError: other members could not connect: `listen` is a loopback address, and the directory is on another
            machine.
    """
    if listen is not None and not _is_loopback(urlsplit(listen).hostname):
        return listen
    own, theirs = _route(url)
    if listen is None:
        return f"tcp://[{own}]:0" if ":" in own else f"tcp://{own}:0"
    if own != theirs and not _is_loopback(own):
        fact = f"members on other machines cannot connect to --listen {listen} ({described(url)})"
        raise UsageError(f"{fact}; leave --listen out, or give an address of this machine such as {own}")
    return listen


def _route(url: str) -> tuple[str, str]:
    """The local address from which this machine reaches the host of a directory's URL, and the host's address.

    Of several hosts the first is taken; a URL without a host of a network is reached by loopback.

    Raises:
        UsageError: the host's name has no address, or this machine has no route to it.
    Cost: one look-up of the name; no packet is sent.
    """
    parts = urlsplit(url)
    first = urlsplit(f"//{parts.netloc.rpartition('@')[2].partition(',')[0]}").hostname
    host = (first if parts.scheme in ("tcp", "etcd") else None) or "127.0.0.1"
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, DISCARD_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return probe.getsockname()[0], str(address[0])
    except OSError as error:
        raise UsageError(f"this machine cannot reach {host} ({error}); correct the address of the directory") from error


def _is_loopback(host: str | None) -> bool:
    """Whether only processes of the same machine can reach this address."""
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False
