"""Ranks as processes that hold one TCP connection to each other, on one machine or many.

The one rule: bytes are taken from the kernel as soon as they come, straight into the receiver's arrays where it has
already asked, into fresh memory where it has not; so no send waits for a receive of another message. How ranks find
and trust one another is told in `transports._rendezvous` and `transports._handshake`.
"""

import asyncio
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import SplitResult

from transports._bare import BareBuffers
from transports._blocks import Block
from transports._contract import Frame, Key, Traffic, Transport
from transports._errors import Closed, PeerAborted, PeerLost, TransportError, WireError
from transports._incoming import Incoming
from transports._inflow import Body, Inflow
from transports._landing import copied
from transports._link import Link
from transports._matching import Arrival, Mailbox
from transports._meeting_point import LOOPBACK, InProcess, meeting_point
from transports._place import Place, this_machine
from transports._rendezvous import gather
from transports._standing import CHANNELS, Standing
from transports._wire import Header, Kind, Layout, Preamble, encode, encode_buffer

ABORT_S = 1.0
CLOSE_S = 10.0
REASON_CHARACTERS = 4096


async def open_url(parts: SplitResult) -> "Tcp":
    """Open `tcp://[HOST:PORT][?wait=SECONDS]`; what the URL leaves out comes from torchrun's variables.

    RANK and WORLD_SIZE say who this is, PIPELINED_KEY or PIPELINED_KEY_FILE hold the shared key.

    Raises:
        ValueError: the URL makes no sense. RendezvousError: the ranks did not find one another.
        AuthenticationError: a key is wrong, here or there.
    """
    place = Place.of(parts, os.environ)
    peers = await gather(place, meeting_point(place))
    return Tcp(place.rank, place.world_size, peers, peers.nodes)


async def world(world_size: int, key: bytes = b"", machines: Sequence[str] = ()) -> list["Tcp"]:
    """All ranks of a world in this process, in order, over loopback; to be used on one event loop.

    Args:
        machines: the name of the machine that each rank pretends to run on; if empty, all run on this one.
    """
    point = InProcess()
    names = machines or [this_machine()] * world_size
    places = [Place(rank, world_size, LOOPBACK, 0, key=key, machine=name) for rank, name in enumerate(names)]
    try:
        async with asyncio.TaskGroup() as group:
            found = [group.create_task(gather(place, point)) for place in places]
    except ExceptionGroup as several:
        raise several.exceptions[0] from None
    return [Tcp(rank, world_size, task.result(), task.result().nodes) for rank, task in enumerate(found)]


class Tcp(Transport):
    """One rank of a world.

    Args:
        peers: one connected, non-blocking, authenticated socket for every other rank; owned from now on.
        nodes: for every rank the lowest rank of its machine; if empty, all are on one.
    """

    def __init__(self, rank: int, world_size: int, peers: dict[int, socket.socket], nodes: tuple[int, ...] = ()):
        self.rank, self.world_size, self.traffic = rank, world_size, Traffic()
        self._nodes = nodes or super().nodes
        self._messages: Mailbox[Incoming] = Mailbox(world_size)
        self._buffers = BareBuffers()
        self._standing = Standing(world_size)
        self._links = {peer: self._link(peer, sock) for peer, sock in peers.items()}

    def __repr__(self) -> str:
        return f"<Tcp rank {self.rank} of {self.world_size}>"

    @property
    def nodes(self) -> tuple[int, ...]:
        return self._nodes

    def last_key(self, peer: int) -> Key | None:
        return self._messages.last_key(peer)

    async def send(self, peer: int, key: Key, *arrays: Any, note: Any = None) -> None:
        self._standing.check_sendable(peer)
        blocks = tuple(Block.of(array) for array in arrays)
        views = encode(Kind.MESSAGE, key, blocks, note)
        if peer == self.rank:
            self._messages.arrived(peer, tuple(key), _to_itself(tuple(key), blocks, note))
        else:
            await self._written(peer, views)
        self.traffic.count_sent(peer, sum(block.nbytes for block in blocks))

    async def receive(self, peer: int | None, key: Key, into: Sequence[Any] | None = None) -> Frame:
        self._standing.check(peer)
        arrival = await self._take(self._messages, peer, key, into)
        incoming = arrival.item
        self.traffic.count_received(incoming.nbytes)
        return Frame(arrival.peer, incoming.header.key, incoming.blocks, incoming.header.note)

    async def send_buffer(self, peer: int, channel: int, buffer: memoryview) -> None:
        self._standing.check_sendable(peer, channel)
        view = memoryview(buffer).cast("B")
        if peer == self.rank:
            self._buffers.lane(peer, channel).whole(view)
        else:
            await self._written(peer, [encode_buffer(channel, view.nbytes), view])
        self.traffic.count_sent(peer, view.nbytes)

    async def receive_buffer(self, peer: int, channel: int, buffer: memoryview) -> None:
        self._standing.check(peer, channel)
        view = memoryview(buffer).cast("B")
        try:
            await self._buffers.lane(peer, channel).receive(view, self._standing.lost.get(peer))
        except ValueError as error:
            raise TransportError(f"buffer from rank {peer} on channel {channel}: {error}") from error
        self.traffic.count_received(view.nbytes)

    async def abort(self, reason: str) -> None:
        ended = self._finish(Closed(f"rank {self.rank} aborted: {reason}"))
        for link in self._links.values():
            link.discard(ended)
        with suppress(TimeoutError):
            async with asyncio.timeout(ABORT_S):
                await self._depart(encode(Kind.ABORT, note=reason[:REASON_CHARACTERS]), ABORT_S)

    async def close(self) -> None:
        self._finish(Closed(f"rank {self.rank} is closed"))
        await self._depart(encode(Kind.GOODBYE), CLOSE_S)

    def kill(self, reason: str = "it was killed") -> None:
        """Die as a process does: hang up on everybody without a word."""
        ended = self._finish(Closed(f"rank {self.rank} is dead: {reason}"))
        for link in self._links.values():
            link.drop(ended)

    async def _depart(self, last: Sequence[bytes | memoryview], patience: float) -> None:
        for link in self._links.values():
            link.farewell(last, self._standing.end)
        await asyncio.gather(*(link.gone(patience) for link in self._links.values()))

    async def _written(self, peer: int, views: Sequence[bytes | memoryview]) -> None:
        link = self._links[peer]
        frame = link.write(views)
        if frame is None:
            return
        try:
            await frame.written
        except asyncio.CancelledError:
            link.withdraw(frame)
            raise

    async def _take(
        self, mailbox: Mailbox[Incoming], peer: int | None, key: Key, into: Sequence[Any] | None
    ) -> Arrival[Incoming]:
        """Take a message and wait for its last byte; a cancelled taker gives it back, and gets his arrays back."""
        lent: list[tuple[Incoming, tuple[Block, ...]]] = []
        arrival = None

        def accept(incoming: Incoming) -> None:
            if into is not None:
                lent.append((incoming, incoming.land(into)))

        try:
            arrival = await mailbox.take(peer, tuple(key), accept)
            await arrival.item.whole()
        except asyncio.CancelledError:
            for incoming, blocks in lent:
                incoming.leave(blocks)
            if arrival is not None:
                mailbox.put_back(arrival)
            raise
        return arrival

    def _link(self, peer: int, sock: socket.socket) -> Link:
        def begin(preamble: Preamble, header: Header) -> Body:
            return self._begin(peer, preamble, header)

        def complete(preamble: Preamble, incoming: Body) -> None:
            self._complete(peer, preamble, incoming)

        return Link(sock, Inflow(begin, complete), lambda reason: self._lose(PeerLost(peer, reason)))

    def _begin(self, peer: int, preamble: Preamble, header: Header) -> Body:
        """A frame's header is here: match it, so that its body can go where it is wanted."""
        match preamble.kind:
            case Kind.MESSAGE:
                incoming = Incoming(header)
                self._messages.arrived(peer, header.key, incoming)
            case Kind.BUFFER if preamble.channel < CHANNELS:
                return self._buffers.lane(peer, preamble.channel).arriving(preamble.body_bytes)
            case Kind.ABORT | Kind.GOODBYE if not preamble.body_bytes:
                incoming = Incoming(header)
            case _:
                raise WireError(
                    f"a frame that tcp does not send (kind: {preamble.kind.name}, channel: {preamble.channel}, "
                    f"body: {preamble.body_bytes} bytes); use one release on every rank"
                )
        return incoming

    def _complete(self, peer: int, preamble: Preamble, incoming: Body) -> None:
        match preamble.kind:
            case Kind.GOODBYE:
                self._lose(PeerLost(peer, "it closed"))
            case Kind.ABORT:
                self._finish(PeerAborted(peer, str(incoming.header.note)))
                self._lose(PeerLost(peer, "it aborted"))

    def _lose(self, error: PeerLost) -> None:
        """Nothing passes between this rank and the lost one any more; whole messages that came before stay."""
        self._standing.lose(error)
        self._messages.fail_peer(error.rank, error)
        self._buffers.fail_peer(error.rank, error)
        self._links[error.rank].drop(error)

    def _finish(self, error: TransportError) -> TransportError:
        """End every operation here but the sends under way; the first reason stays."""
        if self._standing.finish(error):
            self._messages.fail_all(error)
            self._buffers.fail_all(error)
            for link in self._links.values():
                link.fail_incoming(error)
        return self._standing.end


def _to_itself(key: Key, blocks: Sequence[Block], note: Any = None) -> Incoming:
    layouts = tuple(Layout(block.dtype, block.shape) for block in blocks)
    return Incoming.complete(Header(key, note, layouts), copied(blocks))
