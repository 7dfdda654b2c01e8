"""Where the ranks meet: rank 0 opens the meeting point, the others find it. Who owns MASTER_PORT decides how.

The one rule: without a shared key nobody meets anywhere but on loopback.
"""

import asyncio
import errno
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

from transports.errors import RendezvousError
from transports.tcp.config import Place
from transports.tcp.join.node_file import LOOPBACK, NodeFile
from transports.tcp.sockets import Address, family, is_loopback, listen, resolve, told

ANYWHERE = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}
STORE_S = 6.0


class MeetingPoint(Protocol):
    """Rank 0 calls `open` once; every other rank calls `find` as often as it likes.

    Attributes:
        key: the secret that the meeting point itself gives to the ranks, after `open` or `find`; empty if it has none.
    """

    key: bytes = b""

    async def open(self) -> socket.socket:
        """Listen for the other ranks; raises RendezvousError where that cannot be."""

    async def find(self) -> list[Address]:
        """The numeric addresses to try now, best first; empty while nobody knows."""

    def close(self) -> None:
        """Rank 0 has no more need of it; most meeting points may be found for as long as the job runs."""


def meeting_point(place: Place) -> MeetingPoint:
    if not place.store:
        return MasterPort(place)
    return NodeFile(place) if place.one_machine else AgentStore(place)


class MasterPort(MeetingPoint):
    """Rank 0 itself listens at MASTER_ADDR:MASTER_PORT."""

    def __init__(self, place: Place):
        self._place = place

    async def open(self) -> socket.socket:
        address = (await self._resolve())[0]
        try:
            return listen(reachable(address))
        except OSError as error:
            taken = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used ({told(error)})"
            raise RendezvousError(
                f"the port where rank 0 should listen {taken} (host: {address[0]}, port: {address[1]}); "
                "choose another MASTER_PORT, or end the program that holds it"
            ) from error

    async def find(self) -> list[Address]:
        return await self._resolve()

    async def _resolve(self) -> list[Address]:
        host = LOOPBACK if self._place.one_machine else self._place.host
        try:
            found = await resolve(host, self._place.port)
        except OSError as error:
            raise RendezvousError(f"no address for the host {host!r} ({error}); check MASTER_ADDR") from error
        return [permitted(address, self._place) for address in found]


class AgentStore(MeetingPoint):
    """torchrun's agent holds MASTER_PORT with a TCPStore: rank 0 publishes there where it listens.

    Only bytes pass through the store. torch is imported when the first rank asks, in a thread, like every call to it.
    """

    def __init__(self, place: Place):
        self._place, self._store = place, None
        self._name = f"pipelined/{place.run}/rank 0"

    async def open(self) -> socket.socket:
        host = await self._own_host()
        listener = listen(reachable((host, 0)))
        try:
            address = f"{host} {listener.getsockname()[1]}"
            await self._ask(lambda store: store.set(self._name, address.encode()))
        except BaseException:
            listener.close()
            raise
        return listener

    async def find(self) -> list[Address]:
        if not await self._ask(lambda store: store.check([self._name])):
            return []
        found = await self._ask(lambda store: store.get(self._name))
        host, _, port = found.decode(errors="replace").partition(" ")
        try:
            return [permitted((host, int(port)), self._place)]
        except ValueError as error:
            raise RendezvousError(f"torchrun's store holds no address under {self._name!r} ({found[:64]!r})") from error

    async def _own_host(self) -> str:
        """The address by which this machine reaches the store, and so, we trust, by which the others reach it."""
        if self._place.one_machine:
            return LOOPBACK
        try:
            address = (await resolve(self._place.host, self._place.port))[0]
            with socket.socket(family(address[0]), socket.SOCK_DGRAM) as probe:
                probe.connect(address)
                return permitted(probe.getsockname(), self._place)[0]
        except OSError as error:
            raise RendezvousError(f"cannot reach {self._place.host!r} ({error}); check MASTER_ADDR") from error

    async def _ask(self, question: Callable[[Any], Any]) -> Any:
        try:
            return await asyncio.to_thread(lambda: question(self._connected()))
        except RuntimeError as error:
            at = f"{self._place.host}:{self._place.port}"
            raise RendezvousError(f"torchrun's store at {at} does not answer ({error}); start the job again") from error

    def _connected(self) -> Any:
        if self._store is None:
            from torch.distributed import TCPStore

            limit = timedelta(seconds=STORE_S)
            self._store = TCPStore(self._place.host, self._place.port, is_master=False, timeout=limit)
        return self._store


class InProcess(MeetingPoint):
    """All ranks share this object, and meet at a free port on loopback."""

    def __init__(self) -> None:
        self._found: list[Address] = []

    async def open(self) -> socket.socket:
        listener = listen((LOOPBACK, 0))
        self._found = [listener.getsockname()]
        return listener

    async def find(self) -> list[Address]:
        return self._found


def reachable(address: Address) -> Address:
    """Loopback stays loopback; for another address listen on every interface, as the name may be a router's."""
    return address if is_loopback(address[0]) else (ANYWHERE[family(address[0])], address[1])


def permitted(address: Address, place: Place) -> Address:
    if is_loopback(address[0]) or place.key:
        return address
    raise RendezvousError(
        f"the ranks would leave this machine without a shared key (rank 0 at: {address[0]}); "
        "set PIPELINED_KEY or PIPELINED_KEY_FILE on every rank, or MASTER_ADDR=127.0.0.1 to stay on one machine"
    )
