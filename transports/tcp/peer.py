"""The protocol between this rank and one peer over TCP, its frames and the effect of each; and all peers of a rank.

    sender                                            receiver
    MESSAGE or BUFFER, within the credit           →  kept, or taken by a posted receive
                                                   ←  CREDIT, sometimes, for consumed messages
    RTS or RTS_BUFFER, beyond it, number n         →  kept, without its body
                                                   ←  CTS n, when a receive is posted
    DATA n                                         →  directly into the receiver's memory

A send waits only for the receive of its own message, never for that of another.
"""

import asyncio
import socket
from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from typing import Any

from transports.errors import SAME_RELEASE, PeerAborted, PeerLost, TransportError, WireError
from transports.inboxes import Inboxes
from transports.state import CHANNELS
from transports.stream.connection import ConnectionOwner, Ending, FrameConnection
from transports.stream.incoming import (
    EMPTY_BODY,
    FRAME_BYTES,
    IncomingBody,
    IncomingBuffer,
    IncomingMessage,
    header_memory,
    message_memory,
)
from transports.stream.reader import Body, FrameReader, FrameReceiver
from transports.stream.sockets import limit_buffers
from transports.stream.writer import CACHED_CHUNK, LONG_BYTES
from transports.tcp.flow_control import CLOSING_BYTES, OFFERS_BYTES, Credit, Offer, OfferTable
from transports.wire.arrays import Block
from transports.wire.frames import FrameKinds, Header, Key, Preamble, encode, encode_bare, encode_head

FrameViews = Sequence[bytes | memoryview]


class TcpKind(IntEnum):
    """The kind of a frame."""

    MESSAGE = 1  # an addressed message; its body follows the header
    RTS = 2  # ready to send: the header of an addressed message; its body stays at the sender as offer `number`
    BUFFER = 3  # bare bytes on channel `number`, without a header
    ABORT = 4  # the sender failed; `note` is the reason
    GOODBYE = 5  # the sender closed in order and sends nothing more
    RTS_BUFFER = 7  # as RTS, for bare bytes; the key is their channel
    CTS = 8  # clear to send: a receive is posted for offer `number`
    DATA = 9  # the body of offer `number`, without a header
    CREDIT = 10  # the receiver has consumed `note` bytes of unexpected messages


KINDS = FrameKinds(TcpKind, headerless=(TcpKind.BUFFER, TcpKind.CTS, TcpKind.DATA))


class TcpPeer(FrameReceiver[TcpKind], ConnectionOwner):
    """This rank's end towards one peer.

    Args:
        sock: connected, non-blocking, authenticated; owned from now on.
        max_kept: bytes of unexpected messages that each end keeps; also the limit of offers, if above `OFFERS_BYTES`.
        cached: whether the peer is on this machine with a core of its own: then use small buffers, which stay in cache.
    """

    def __init__(self, rank: int, sock: socket.socket, owner: "TcpPeers", max_kept: int, cached: bool):
        self._rank, self._owner = rank, owner
        self._credit = Credit(max_kept)
        self._offer_credit = Credit(max(max_kept, OFFERS_BYTES))
        self._outgoing_offers = OfferTable(self._offer_credit)
        self._closing_credit = Credit(max(max_kept, CLOSING_BYTES))
        self._incoming_offers: dict[int, IncomingBody[Any]] = {}
        if cached:
            limit_buffers(sock)
        chunk = CACHED_CHUNK if cached else LONG_BYTES
        self.connection = FrameConnection(sock, FrameReader(KINDS, self), self, chunk)

    async def send_message(self, key: Key, blocks: Sequence[Block], note: Any) -> None:
        """Send a message; return when the blocks' memory may be reused."""
        frame = encode(TcpKind.MESSAGE, key, blocks, note)
        header_bytes = header_memory(key, note, blocks)
        memory_bytes = header_bytes + sum([block.nbytes for block in blocks])
        if self._credit.acquire(memory_bytes):
            return await self._write(frame, memory_bytes)
        await self._offer(TcpKind.RTS, key, blocks, note, header_bytes)

    async def send_buffer(self, channel: int, view: memoryview) -> None:
        """Send a bare buffer; return when its memory may be reused."""
        memory_bytes = FRAME_BYTES + view.nbytes
        if self._credit.acquire(memory_bytes):
            return await self._write([encode_bare(TcpKind.BUFFER, channel, view.nbytes), view], memory_bytes)
        await self._offer(TcpKind.RTS_BUFFER, (channel,), [Block.of(view)], None, FRAME_BYTES)

    def end(self, ending: Ending, error: Exception, last_views: FrameViews = ()) -> None:
        """End in this way: see the table of `transports.stream.connection`.

        Args:
            error, last_views: as for `FrameConnection.end`.
        """
        for number, offer in self._outgoing_offers.clear().items():
            if ending is Ending.CLOSE and self._closing_credit.acquire(offer.nbytes):
                self._deliver(number, offer)
            else:
                offer.resolve(error)
        self.connection.end(ending, error, last_views)
        for body in self._incoming_offers.values():  # kept: the peer may have begun to send one that was requested
            body.fail(error)

    async def _write(self, views: FrameViews, memory_bytes: int) -> None:
        frame = self.connection.write(views)
        if frame is None:
            return
        try:
            await frame.written
        except asyncio.CancelledError:
            if self.connection.withdraw(frame):
                self._credit.release(memory_bytes)
            raise

    async def _offer(self, kind: TcpKind, key: Key, blocks: Sequence[Block], note: Any, memory_bytes: int) -> None:
        offer = Offer([block.data for block in blocks if block.nbytes], memory_bytes)
        self.connection.write([encode_head(kind, key, blocks, note, number=self._outgoing_offers.put(offer))])
        try:
            await offer.reusable
        except asyncio.CancelledError:
            offer.copy_data()
            raise

    def _deliver(self, number: int, offer: Offer) -> None:
        offer.start_writing(self.connection.write([encode_bare(TcpKind.DATA, number, offer.nbytes), *offer.views]))

    def on_broken(self, reason: str) -> None:
        self._owner.on_lost(PeerLost(self._rank, reason))

    def on_receive_posted(self, body: IncomingBody[Any]) -> None:
        """A receive is posted for a body of this peer: request it, or return its credit some time."""
        if body.offer is not None:
            self._offer_credit.on_fetched(body.kept_bytes)
            self.connection.write([encode_bare(TcpKind.CTS, body.offer, 0)])
        elif credit := self._credit.on_consumed(body.kept_bytes):
            self.connection.write(encode(TcpKind.CREDIT, note=credit))

    def on_header(self, preamble: Preamble[TcpKind], header: Header) -> Body:
        match preamble.kind:
            case TcpKind.MESSAGE:
                memory_bytes = message_memory(header)
                self._credit.on_received(memory_bytes)
                return self._put_message(header, memory_bytes)
            case TcpKind.BUFFER if preamble.number < CHANNELS:
                memory_bytes = FRAME_BYTES + preamble.body_bytes
                self._credit.on_received(memory_bytes)
                return self._put_buffer(preamble.number, preamble.body_bytes, memory_bytes)
            case TcpKind.RTS | TcpKind.RTS_BUFFER:
                return self._on_rts(preamble, header)
            case TcpKind.DATA:
                return self._offered_body(preamble)
            case TcpKind.ABORT | TcpKind.GOODBYE | TcpKind.CTS | TcpKind.CREDIT if not preamble.body_bytes:
                return EMPTY_BODY
        raise WireError(
            f"unexpected kind of frame (kind: {preamble.kind.name}, number: {preamble.number}, "
            f"body: {preamble.body_bytes} bytes); {SAME_RELEASE}"
        )

    def on_frame(self, preamble: Preamble[TcpKind], header: Header, body: Body) -> None:
        match preamble.kind:
            case TcpKind.CTS if self._owner.inboxes.state.ended_by is None:  # else the offer has failed
                self._deliver(preamble.number, self._outgoing_offers.pop(preamble.number))
            case TcpKind.CREDIT:
                self._credit.on_credit(header.note)
            case TcpKind.GOODBYE:
                self._owner.on_lost(PeerLost(self._rank, "it closed"))
            case TcpKind.ABORT:
                self._owner.on_abort(self._rank, str(header.note))

    def _put_message(self, header: Header, memory_bytes: int, offer: int | None = None) -> IncomingMessage:
        incoming = IncomingMessage(header, self, memory_bytes, offer)
        self._owner.inboxes.messages.put(self._rank, header.key, incoming)
        return incoming

    def _put_buffer(self, channel: int, nbytes: int, memory_bytes: int, offer: int | None = None) -> IncomingBuffer:
        incoming = IncomingBuffer(nbytes, self, memory_bytes, offer)
        self._owner.inboxes.buffers.put(self._rank, (channel,), incoming)
        return incoming

    def _on_rts(self, preamble: Preamble[TcpKind], header: Header) -> Body:
        """Keep an offer in the mailbox like a message; its body is requested when a receive is posted."""
        number = preamble.number
        if number in self._incoming_offers:
            raise WireError(f"a number offered twice (number: {number})")
        bare = preamble.kind is TcpKind.RTS_BUFFER
        memory_bytes = FRAME_BYTES if bare else header_memory(header.key, header.note, header.layouts)
        self._offer_credit.on_received(memory_bytes)
        if not bare:
            self._incoming_offers[number] = self._put_message(header, memory_bytes, number)
            return EMPTY_BODY
        match header.key:
            case (int(channel),) if 0 <= channel < CHANNELS:
                self._incoming_offers[number] = self._put_buffer(channel, header.nbytes, memory_bytes, number)
                return EMPTY_BODY
        raise WireError(f"a buffer offered on no channel (key: {header.key!r}, channels: {CHANNELS})")

    def _offered_body(self, preamble: Preamble[TcpKind]) -> Body:
        body = self._incoming_offers.pop(preamble.number, None)
        if body is None or body.nbytes != preamble.body_bytes:
            offered = "nothing" if body is None else f"{body.nbytes} bytes"
            raise WireError(
                f"DATA of another size than its RTS (came: {preamble.body_bytes} bytes, offered: {offered})"
            )
        if body.sender is not None:
            self._closing_credit.on_received(body.nbytes)
            body.sender = None
        return body


class TcpPeers:
    """The peers of one rank, by rank.

    Args:
        sockets: one connected, non-blocking, authenticated socket for each other rank; owned from now on.
        max_kept: bytes of unexpected messages that are kept here from each peer; equal on all ranks.
        ranks_with_own_core: the ranks on this machine if each has a core of its own, else none.
    Attributes:
        inboxes: what the peers sent, whether this rank is open, and which peers are lost.
    """

    def __init__(self, sockets: Mapping[int, socket.socket], max_kept: int, ranks_with_own_core: Collection[int]):
        self.inboxes = Inboxes[IncomingMessage, IncomingBuffer](len(sockets) + 1)
        self._peers = {
            rank: TcpPeer(rank, sock, self, max_kept, rank in ranks_with_own_core) for rank, sock in sockets.items()
        }

    def __getitem__(self, rank: int) -> TcpPeer:
        return self._peers[rank]

    @property
    def missing(self) -> int:
        """Bytes that are still to come of the bodies that are being read."""
        return sum(peer.connection.missing for peer in self._peers.values())

    def on_abort(self, rank: int, reason: str) -> None:
        self.end(Ending.STOP_RECEIVING, PeerAborted(rank, reason))
        self.on_lost(PeerLost(rank, "it aborted"))

    def on_lost(self, error: PeerLost) -> None:
        """Close the connection with the lost rank; complete messages that came before stay available."""
        self.inboxes.lose(error)
        self._peers[error.rank].end(Ending.DROP, error)

    def end(self, ending: Ending, error: TransportError, last_views: FrameViews = ()) -> None:
        """Fail every operation here from now on; all connections end in this way.

        Args:
            error: the reason; if this rank has ended before, that reason is kept.
            last_views: as for `FrameConnection.end`.
        """
        error = self.inboxes.end(error)
        for peer in self._peers.values():
            peer.end(ending, error, last_views)

    async def wait_closed(self, seconds: float) -> None:
        """After a last frame, wait until every peer has received everything; see `FrameConnection.wait_closed`."""
        await asyncio.gather(*(peer.connection.wait_closed(seconds) for peer in self._peers.values()))
