"""The worlds of one endpoint.

    worlds = Worlds(endpoint, max_bytes=1 << 30)            once for an endpoint
    transport = await worlds.open("cluster 3", addresses)   every party of the world, with equal arguments

`open` returns when all parties have opened the world, so no message arrives before its world. A message is a request,
answered on arrival, and waits at its receiver. A party that restarts is lost to the world, and so is one to which the
connection breaks.
"""

import asyncio
from collections.abc import Iterable, Sequence

from transports.aio.futures import resolve
from transports.rpc.base import Endpoint, Party, Rejected, Request, Response
from transports.rpc.world.holders import Holders
from transports.rpc.world.notes import BufferNote, EndNote, MessageNote, OpenNote, WorldNote
from transports.rpc.world.requests import MAX_SENDS_AT_ONCE
from transports.rpc.world.transport import RpcTransport
from transports.rpc.world.world import World

MAX_WORLDS = 64
"""A receiver has room for all messages in flight of this many worlds of two parties; with more it may reply "busy"."""


class Worlds:
    """The worlds of one endpoint, by name. Messages that wait for their receives may take any amount of memory.

    Args:
        max_bytes: the largest message, equal for all parties.
    """

    def __init__(self, endpoint: Endpoint, max_bytes: int):
        self.endpoint, self._max_bytes = endpoint, max_bytes
        self._worlds: dict[str, World] = {}
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._lost_addresses = set[str]()
        endpoint.handle(OpenNote.topic, self._on_open)
        endpoint.handle(MessageNote.topic, self._on_message, max_bytes, MAX_SENDS_AT_ONCE * MAX_WORLDS)
        endpoint.handle(BufferNote.topic, self._on_buffer, max_bytes, MAX_SENDS_AT_ONCE * MAX_WORLDS)
        endpoint.handle(EndNote.topic, self._on_end)
        endpoint.add_lost_callback(self._on_lost)

    async def open(self, name: str, addresses: Sequence[str], backups: Sequence[str] = ()) -> RpcTransport:
        """Open a world; returns when every party has opened it.

        This waits until a party that has not opened the world yet opens it, or its connection breaks. It also waits for
        a party that listens and does not reply to a handshake in time; cancel this to give up.

        Args:
            name: of this world alone, among all that these parties ever open.
            addresses: of the endpoint of each rank; this party's is among these and the backups once.
            backups: of a second endpoint of each rank, "" where there is none; see `transports.rpc.world.holders`.
        Raises:
            ValueError: this party is not in the world, an address is there twice, or the name is in use.
            PeerLost: a party cannot be reached, or has left. PeerAborted: a party failed, or its opening did.
            If it raises or is cancelled, the world has aborted for every party that has opened it.
        Cost: one small request to each party.
        """
        all_addresses = [*addresses, *filter(None, backups)]
        if (
            len(set(all_addresses)) < len(all_addresses)
            or self.endpoint.address not in all_addresses
            or name in self._worlds
        ):
            fact = f"no world (name: {name}, addresses: {', '.join(all_addresses)}, here: {self.endpoint.address})"
            raise ValueError(f"{fact}; give each party once, this one too, and a new name")
        holders = Holders(addresses, backups, self.endpoint.address)
        world = self._worlds[name] = World(self.endpoint, name, holders, self._max_bytes, self._worlds.pop)
        world.on_gone(self._lost_addresses)
        for waiting in self._waiting.pop(name, ()):
            resolve(waiting)
        try:
            await world.open()
        except BaseException as error:
            await world.abort(f"{self.endpoint.address} could not open the world ({abort_reason(error)})")
            raise
        return RpcTransport(world)

    def lose(self, addresses: Iterable[str]) -> None:
        """Lose the parties at these addresses in worlds with backups, open now or later.

        This replaces the addresses of the previous call.
        """
        self._lost_addresses = {*addresses}
        for world in list(self._worlds.values()):
            world.on_gone(self._lost_addresses)

    async def _on_open(self, request: Request) -> Response:
        note = OpenNote.parse(request)
        if note.world not in self._worlds:
            await self._wait_opened(note.world)
        self._require_world(note).on_open(request.sender)
        return Response()

    async def _on_message(self, request: Request) -> Response:
        note = MessageNote.parse(request)
        self._require_world(note).on_message(request.sender, note, request.blocks)
        return Response()

    async def _on_buffer(self, request: Request) -> Response:
        note = BufferNote.parse(request)
        self._require_world(note).on_buffer(request.sender, note, request.blocks)
        return Response()

    async def _on_end(self, request: Request) -> Response:
        note = EndNote.parse(request)
        self._require_world(note).on_end(request.sender, note)
        return Response()

    async def _wait_opened(self, name: str) -> None:
        """Wait until this party opens the world."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(name, []).append(waiting)
        try:
            await waiting
        finally:
            waiters = self._waiting.get(name, [])
            if waiting in waiters:
                waiters.remove(waiting)
            if not waiters:
                self._waiting.pop(name, None)

    def _require_world(self, note: WorldNote) -> World:
        if note.world not in self._worlds:
            raise Rejected("closed", world=note.world[:64])
        return self._worlds[note.world]

    def _on_lost(self, party: Party) -> None:
        for world in list(self._worlds.values()):
            world.on_lost(party)


def abort_reason(error: BaseException) -> str:
    """The reason that a party gives when this error makes it abort a world."""
    stopped = isinstance(error, asyncio.CancelledError)
    return "it was stopped" if stopped else str(error) or type(error).__name__
