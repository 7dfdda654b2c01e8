"""The `local` transport: all ranks in one process, on one event loop, with real headers between them.

A message stays in its sender's memory until the receiver takes it, and is then copied once, into the receiver's arrays.
So a program that would deadlock on a network deadlocks here too. Headers are encoded and parsed as on a network. Not
thread-safe: only the event loop may call this module.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from transports.aio.futures import resolve
from transports.base import Message, Transport
from transports.errors import Closed, PeerAborted, PeerLost, SizeMismatch, TransportError
from transports.inboxes import Inboxes, fit_or_put_back
from transports.urls import ParsedUrl
from transports.wire.arrays import Block, as_targets, copied, fill, writable_bytes
from transports.wire.frames import Header, Key, pack_header, unpack_header

NO_HEADER = Header((), None, ())


def world(world_size: int) -> list["LocalTransport"]:
    """The ranks of a world in this process, in order, for one event loop."""
    ranks: list[LocalTransport] = []
    ranks.extend(LocalTransport(rank, world_size, ranks) for rank in range(world_size))
    return ranks


async def open_url(url: ParsedUrl) -> "LocalTransport":
    """`local://`: a world of one rank; `world` makes larger ones."""
    url.check_all_taken()
    return world(1)[0]


class _PendingSend:
    """A message that waits at its sender: its header, views of its arrays, and the future that its receive resolves."""

    def __init__(self, peer: int, blocks: tuple[Block, ...], header: Header = NO_HEADER):
        self.peer, self.blocks, self.header = peer, blocks, header
        self.received = asyncio.get_running_loop().create_future()

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self.blocks)

    def copy_into(self, blocks: Sequence[Block]) -> None:
        fill(blocks, self.blocks)
        self.release()

    def copy_data(self) -> None:
        """Copy the arrays and release the sender."""
        self.blocks = copied(self.blocks)
        self.release()

    def release(self, error: Exception | None = None) -> None:
        resolve(self.received, error)


class LocalTransport(Transport):
    """One rank of a world made by `world`.

    `send` and `send_buffer` return when the receiver has the bytes. A cancelled send leaves a copy to be received.
    """

    def __init__(self, rank: int, world_size: int, ranks: Sequence["LocalTransport"]):
        super().__init__(rank, world_size)
        self._ranks = ranks
        self._inboxes = Inboxes[_PendingSend, _PendingSend](world_size)
        self._state, self._messages, self._buffers = self._inboxes.state, self._inboxes.messages, self._inboxes.buffers
        self._outgoing: set[_PendingSend] = set()

    async def send(self, peer: int, key: Key, *arrays: Any, note: Any = None) -> None:
        self._state.check_sendable(peer)
        blocks = tuple(Block.of(array) for array in arrays)
        pending = _PendingSend(peer, blocks, unpack_header(pack_header(key, blocks, note)))
        self._ranks[peer]._messages.put(self.rank, key, pending)
        await self._wait_taken(pending)

    async def receive(self, peer: int | None, key: Key, into: Sequence[Any] | None = None) -> Message:
        self._state.check(peer)
        targets = as_targets(into)
        arrival = await self._messages.take(peer, key)
        header = arrival.item.header
        blocks = fit_or_put_back(self._messages, arrival, header.layouts, targets)
        arrival.item.copy_into(blocks)
        self.traffic.count_received(arrival.item.nbytes)
        return Message(arrival.peer, header.key, blocks, header.note)

    def probe(self, peer: int | None, key: Key) -> bool:
        return self._messages.probe(peer, key)

    async def send_buffer(self, peer: int, channel: int, buffer: memoryview) -> None:
        self._state.check_sendable(peer, channel)
        block = Block.bare(buffer)
        pending = _PendingSend(peer, (block,))
        self._ranks[peer]._buffers.put(self.rank, (channel,), pending)
        await self._wait_taken(pending)

    async def receive_buffer(self, peer: int, channel: int, buffer: memoryview) -> None:
        self._state.check(peer, channel)
        block = Block.bare(writable_bytes(buffer))
        pending = (await self._buffers.take(peer, (channel,))).item
        if pending.nbytes != block.nbytes:
            prefix = memoryview(bytes(pending.blocks[0].data[: block.nbytes]))
            pending.release()
            raise SizeMismatch(peer, channel, block.nbytes, pending.nbytes, prefix)
        pending.copy_into((block,))
        self.traffic.count_received(pending.nbytes)

    def last_key(self, peer: int) -> Key | None:
        return self._messages.last_key(peer)

    async def abort(self, reason: str) -> None:
        for rank in self._other_ranks():
            rank._finish(PeerAborted(self.rank, reason))
        self._finish(Closed(f"rank {self.rank} aborted: {reason}"))

    async def close(self) -> None:
        if self._state.ended_by is not None:
            return
        for pending in self._outgoing:
            pending.copy_data()
        self._finish(Closed(f"rank {self.rank} is closed"))
        for rank in self._other_ranks():
            rank._lose(PeerLost(self.rank, "it closed"))

    async def _wait_taken(self, pending: _PendingSend) -> None:
        self._outgoing.add(pending)
        try:
            await pending.received
        except asyncio.CancelledError:
            if pending.received.cancelled():
                pending.copy_data()
            raise
        finally:
            self._outgoing.discard(pending)
        self.traffic.count_sent(pending.peer, pending.nbytes)

    def _other_ranks(self) -> list["LocalTransport"]:
        return [rank for rank in self._ranks if rank is not self]

    def _lose(self, error: PeerLost) -> None:
        """Fail all receives from, and pending sends to, the lost rank; messages that arrived before stay available."""
        self._inboxes.lose(error)
        for pending in self._outgoing:
            if pending.peer == error.rank:
                pending.release(error)

    def _finish(self, error: TransportError) -> None:
        error = self._inboxes.end(error)
        for pending in self._outgoing:
            pending.release(error)
