"""A world of ranks between endpoints: parties of an open network that agreed on the ranks talk as over any transport.

    worlds = Worlds(endpoint, max_bytes=1 << 30)           once for an endpoint
    end = await worlds.open("cluster 3", addresses)         every party of the world, with equal arguments

`open` returns when all parties have opened the world, so no message arrives before its world. A message is a request,
answered on arrival, and waits at its receiver; so the ranks limit what they have in flight. A party whose connection
breaks, or that restarts, is lost to the world.

| topic | note | reply |
|---|---|---|
| `world/open` | name | when the receiver has opened the world, too |
| `world/message` | name, header of the message | when the message is in the mailbox |
| `world/buffer` | name, channel | the same |
| `world/end` | name, reason, whether the sender failed | at once |
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from transports.aio.nursery import Nursery
from transports.base import Message, Transport
from transports.errors import Closed, PeerAborted, PeerLost, SizeMismatch, TransportError, WireError
from transports.mailbox import Mailbox
from transports.rpc.base import Endpoint, Party, Rejected, Request, Response, Unreachable
from transports.state import TransportState
from transports.wire.arrays import ArrayType, Block, copied, destinations, fill, receive_blocks
from transports.wire.frames import Key, pack_header, unpack_header

OPEN, MESSAGE, BUFFER, END = "world/open", "world/message", "world/buffer", "world/end"
GOODBYE_S = 1.0
"""Seconds that an end waits until the others have its last word."""
Blocks = tuple[Block, ...]


class Worlds:
    """The worlds of one endpoint, by name.

    Args:
        max_bytes: the largest message that this party takes.
    """

    def __init__(self, endpoint: Endpoint, max_bytes: int):
        self.endpoint = endpoint
        self._worlds: dict[str, EndpointTransport] = {}
        self._waiting: dict[str, asyncio.Future[None]] = {}
        endpoint.handle(OPEN, self._on_open)
        endpoint.handle(MESSAGE, self._on_message, max_bytes)
        endpoint.handle(BUFFER, self._on_buffer, max_bytes)
        endpoint.handle(END, self._on_end)
        endpoint.on_lost(self._on_lost)

    async def open(self, name: str, addresses: Sequence[str]) -> "EndpointTransport":
        """Open a world; returns when every party has opened it.

        Args:
            name: of this world alone, among all that these parties ever open.
            addresses: of the endpoint of each rank; this party's is among them once.
        Raises:
            ValueError: this party is not in the world, an address is there twice, or the name is in use.
            PeerLost: a party cannot be reached.
        Cost: one small request to each party.
        """
        if len(set(addresses)) < len(addresses) or self.endpoint.address not in addresses or name in self._worlds:
            fact = f"no world (name: {name}, addresses: {', '.join(addresses)}, here: {self.endpoint.address})"
            raise ValueError(f"{fact}; give each party once, this one too, and a new name")
        world = self._worlds[name] = EndpointTransport(self, name, addresses)
        self._waiting.pop(name, asyncio.get_running_loop().create_future()).set_result(None)
        try:
            async with Nursery() as tasks:
                for rank in world._others():
                    tasks.create_task(world._request(rank, OPEN, name))
        except BaseException:
            del self._worlds[name]
            raise
        return world

    def forget(self, name: str) -> None:
        """Refuse the messages of a world from now on."""
        self._worlds.pop(name, None)

    async def _on_open(self, request: Request) -> Response:
        name = request.note
        if not isinstance(name, str):
            raise Rejected("malformed", why="no name of a world")
        if name not in self._worlds:
            waiting = self._waiting.setdefault(name, asyncio.get_running_loop().create_future())
            await asyncio.shield(waiting)
        self._worlds[name]._join(request.sender)
        return Response()

    async def _on_message(self, request: Request) -> Response:
        world, (header,) = self._found(request, 2)
        world._take_message(request.sender, header, request.blocks)
        return Response()

    async def _on_buffer(self, request: Request) -> Response:
        world, (channel,) = self._found(request, 2)
        world._take_buffer(request.sender, channel, request.blocks)
        return Response()

    async def _on_end(self, request: Request) -> Response:
        world, (reason, failed) = self._found(request, 3)
        world._take_end(request.sender, str(reason), bool(failed))
        return Response()

    def _found(self, request: Request, fields: int) -> "tuple[EndpointTransport, list[Any]]":
        """The world of a request, and the rest of its note."""
        note = request.note
        if not isinstance(note, list) or len(note) != fields or not isinstance(note[0], str):
            raise Rejected("malformed", why=f"no list of a world's name and {fields - 1} more")
        if note[0] not in self._worlds:
            raise Rejected("closed", world=note[0][:64])
        return self._worlds[note[0]], note[1:]

    def _on_lost(self, party: Party) -> None:
        for world in list(self._worlds.values()):
            world._lose_party(party)


class EndpointTransport(Transport):
    """One rank of a world that `Worlds.open` opened. `close` leaves the endpoint open."""

    def __init__(self, worlds: Worlds, name: str, addresses: Sequence[str]):
        super().__init__(addresses.index(worlds.endpoint.address), len(addresses))
        self._worlds, self._name, self._addresses = worlds, name, tuple(addresses)
        self._parties: dict[int, Party] = {}
        self._messages: Mailbox[tuple[Blocks, Any]] = Mailbox(self.world_size)
        self._buffers: Mailbox[Block] = Mailbox(self.world_size)
        self._state = TransportState(self.world_size)
        self._sending = set[asyncio.Future[Any]]()

    def __repr__(self) -> str:
        return f"<EndpointTransport {self._name}, rank {self.rank} of {self.world_size}>"

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(range(self.world_size))

    async def send(self, peer: int, key: Key, *arrays: Any, note: Any = None) -> None:
        self._state.check_sendable(peer)
        blocks = tuple(Block.of(array) for array in arrays)
        header = pack_header(key, blocks, note)
        if peer == self.rank:
            self._messages.arrived(peer, key, (copied(blocks), note))
        else:
            await self._tracked(self._request(peer, MESSAGE, [self._name, header], blocks))
        self.traffic.count_sent(peer, _size(blocks))

    async def receive(self, peer: int | None, key: Key, into: Sequence[Any] | None = None) -> Message:
        self._state.check(peer)
        places = destinations(into)
        arrival = await self._messages.take(peer, key)
        blocks, note = arrival.item
        if places is not None:
            try:
                own = receive_blocks([ArrayType(block.dtype, block.shape) for block in blocks], places)
            except ValueError:
                self._messages.put_back(arrival)
                raise
            fill(own, blocks)
            blocks = own
        self.traffic.count_received(_size(blocks))
        return Message(arrival.peer, arrival.key, blocks, note)

    def probe(self, peer: int | None, key: Key) -> bool:
        return self._messages.probe(peer, key)

    async def send_buffer(self, peer: int, channel: int, buffer: memoryview, *, overhead: int = 0) -> None:
        self._state.check_sendable(peer, channel)
        block = Block.bare(buffer)
        if peer == self.rank:
            self._buffers.arrived(peer, (channel,), copied([block])[0])
        else:
            await self._tracked(self._request(peer, BUFFER, [self._name, channel], (block,)))
        self.traffic.count_sent(peer, block.nbytes, overhead)

    async def receive_buffer(self, peer: int, channel: int, buffer: memoryview, *, overhead: int = 0) -> None:
        self._state.check(peer, channel)
        block = Block.bare(buffer)
        arrived = (await self._buffers.take(peer, (channel,))).item
        if arrived.nbytes != block.nbytes:
            raise SizeMismatch(peer, channel, block.nbytes, arrived.nbytes, arrived.data[: block.nbytes])
        fill([block], [arrived])
        self.traffic.count_received(block.nbytes, overhead)

    def last_key(self, peer: int) -> Key | None:
        return self._messages.last_key(peer)

    async def abort(self, reason: str) -> None:
        if self._state.end is None:
            self._finish(Closed(f"rank {self.rank} aborted: {reason}"))
            await self._say_end(reason, failed=True)

    async def close(self) -> None:
        if self._state.end is None:
            await asyncio.gather(*self._sending, return_exceptions=True)
            self._finish(Closed(f"rank {self.rank} is closed"))
            await self._say_end("it closed", failed=False)

    async def _say_end(self, reason: str, failed: bool) -> None:
        """Tell the ranks that are not lost; at most `GOODBYE_S`."""

        async def say(rank: int) -> None:
            with suppress(TransportError):
                await self._request(rank, END, [self._name, reason, failed])

        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S), Nursery() as tasks:
                for rank in self._others():
                    if rank not in self._state.lost:
                        tasks.create_task(say(rank))

    async def _tracked(self, request: Coroutine[Any, Any, None]) -> None:
        """A request that `close` waits for, and that ends when this end or its receiver is lost."""
        task = asyncio.ensure_future(request)
        self._sending.add(task)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
            self._sending.discard(task)
        if task.cancelled():
            self._state.check(None)
        task.result()

    async def _request(self, rank: int, topic: str, note: Any, blocks: Blocks = ()) -> None:
        """Raises PeerLost: the rank cannot be reached, or has left the world."""
        try:
            await self._worlds.endpoint.request(self._addresses[rank], topic, *blocks, note=note)
        except (Unreachable, Rejected) as error:
            lost = PeerLost(rank, str(error))
            self._lose(lost)
            raise (self._state.end or self._state.lost.get(rank, lost)).with_traceback(None) from error

    def _others(self) -> list[int]:
        return [rank for rank in range(self.world_size) if rank != self.rank]

    def _join(self, party: Party) -> None:
        """Know a party of the world by what its handshake proved."""
        if party.address not in self._addresses:
            raise Rejected("stranger", address=party.address)
        rank = self._addresses.index(party.address)
        if self._parties.setdefault(rank, party) != party:
            raise Rejected("restarted", address=party.address)

    def _rank_of(self, party: Party) -> int:
        for rank, known in self._parties.items():
            if known == party:
                return rank
        raise Rejected("stranger", address=party.address)

    def _take_message(self, party: Party, header: Any, blocks: Blocks) -> None:
        rank = self._rank_of(party)
        try:
            found = unpack_header(header)
        except (WireError, TypeError) as error:
            raise Rejected("malformed", why=str(error)[:200]) from error
        if list(found.layouts) != [ArrayType(block.dtype, block.shape) for block in blocks]:
            raise Rejected("malformed", why="the arrays are not those of the header")
        self._messages.arrived(rank, found.key, (blocks, found.note))

    def _take_buffer(self, party: Party, channel: Any, blocks: Blocks) -> None:
        rank = self._rank_of(party)
        if type(channel) is not int or len(blocks) != 1:
            raise Rejected("malformed", why="no channel with one array")
        self._buffers.arrived(rank, (channel,), blocks[0])

    def _take_end(self, party: Party, reason: str, failed: bool) -> None:
        rank = self._rank_of(party)
        if failed:
            self._finish(PeerAborted(rank, reason))
        else:
            self._lose(PeerLost(rank, reason))

    def _lose_party(self, party: Party) -> None:
        for rank, known in self._parties.items():
            if known == party:
                self._lose(PeerLost(rank, "its connection broke"))

    def _lose(self, error: PeerLost) -> None:
        """Fail what waits for a lost rank; messages that arrived before stay available."""
        self._state.lose(error)
        error = self._state.lost[error.rank]
        self._messages.fail_peer(error.rank, error)
        self._buffers.fail_peer(error.rank, error)

    def _finish(self, error: TransportError) -> None:
        error = self._state.end_with(error)
        self._messages.fail_all(error)
        self._buffers.fail_all(error)
        self._worlds.forget(self._name)
        for sending in list(self._sending):
            sending.cancel()


def _size(blocks: Blocks) -> int:
    return sum(block.nbytes for block in blocks)
