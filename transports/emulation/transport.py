"""Any transport over emulated slow links, for rehearsing a slow network on one machine.

Only time is added; messages, order and errors are those of the inner transport. Every rank delays what it sends, except
to itself. All methods of the contract are passed on except `open_native` and `open_shared`: their bytes
cannot be delayed.
"""

import asyncio
import math
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from transports.base import Message, Transport
from transports.emulation.delayed_sender import DelayedSender, ForwardBlocks
from transports.emulation.link_timing import LinkTiming
from transports.emulation.options import LinkProfile
from transports.errors import Closed, PeerAborted, PeerLost, TransportError
from transports.state import TransportState
from transports.wire.arrays import Block, flat_bytes
from transports.wire.frames import PREAMBLE_BYTES, Key, pack_header, unpack_header

SEND_BUFFER_BYTES = 4 << 20  # of emulated kernel buffers; bytes in flight on the link come on top
AHEAD_BYTES = 1 << 20  # bytes not yet left when a send returns, so that a late next send leaves no gap on the link

T = TypeVar("T")


class SlowTransport(Transport):
    """One rank's end behind slow links.

    Args:
        inner: the transport that sends; owned from now on.
        profile: that of the links to all peers, each direction apart. If it has nodes, `nodes` are these.
    """

    def __init__(self, inner: Transport, profile: LinkProfile):
        super().__init__(inner.rank, inner.world_size)
        self._inner, self._profile = inner, profile
        self._state = TransportState(inner.world_size)
        self._senders: dict[int, DelayedSender] = {}

    def __repr__(self) -> str:
        return f"<SlowTransport {self._inner!r}: {self._profile}>"

    @property
    def nodes(self) -> tuple[int, ...]:
        node = self._profile.ranks_per_node
        return tuple(rank - rank % node for rank in range(self.world_size)) if node else self._inner.nodes

    @property
    def ranks_here(self) -> tuple[int, ...]:
        """Those of the inner transport: the nodes of a profile are emulated, and share one machine's cores."""
        return self._inner.ranks_here

    async def send(self, peer: int, key: Key, *arrays: Any, note: Any = None) -> None:
        self._state.check_sendable(peer)
        now = asyncio.get_running_loop().time()
        blocks = [Block.of(array) for array in arrays]
        packed = pack_header(key, blocks, note)
        header = unpack_header(packed)  # the sender may change the note

        def forward(parts: Sequence[Block]) -> Awaitable[None]:
            return self._inner.send(peer, header.key, *parts, note=header.note)

        await self._send(now, peer, blocks, PREAMBLE_BYTES + len(packed), forward)

    async def receive(self, peer: int | None, key: Key, into: Sequence[Any] | None = None) -> Message:
        self._state.check(peer)
        message = await self._recording_errors(self._inner.receive(peer, key, into))
        self.traffic.count_received(sum(block.nbytes for block in message.blocks))
        return message

    def probe(self, peer: int | None, key: Key) -> bool:
        return self._inner.probe(peer, key)

    async def send_buffer(self, peer: int, channel: int, buffer: memoryview) -> None:
        self._state.check_sendable(peer, channel)
        now = asyncio.get_running_loop().time()
        block = Block.bare(buffer)

        def forward(parts: Sequence[Block]) -> Awaitable[None]:
            return self._inner.send_buffer(peer, channel, parts[0].data)

        await self._send(now, peer, [block], PREAMBLE_BYTES, forward)

    async def receive_buffer(self, peer: int, channel: int, buffer: memoryview) -> None:
        self._state.check(peer, channel)
        await self._recording_errors(self._inner.receive_buffer(peer, channel, buffer))
        self.traffic.count_received(flat_bytes(buffer).nbytes)

    @property
    def activity(self) -> int:
        is_moving = any(sender.is_moving for sender in self._senders.values())
        return self._inner.activity + (int(asyncio.get_running_loop().time()) if is_moving else 0)

    @property
    def aborts_as_one(self) -> bool:
        return self._inner.aborts_as_one

    def abort_job(self, code: int) -> None:
        self._inner.abort_job(code)

    def set_computing(self, busy: bool) -> None:
        self._inner.set_computing(busy)

    def last_key(self, peer: int) -> Key | None:
        return self._inner.last_key(peer)

    async def abort(self, reason: str) -> None:
        self._end(Closed(f"rank {self.rank} aborted: {reason}"))
        await self._inner.abort(reason)
        await self._wait_ended()

    async def close(self) -> None:
        self._state.end_with(Closed(f"rank {self.rank} is closed"))
        for sender in self._senders.values():
            await sender.wait_drained()
        await self._inner.close()
        await self._wait_ended()

    async def _send(
        self, now: float, peer: int, blocks: Sequence[Block], head_bytes: int, forward: ForwardBlocks
    ) -> None:
        if peer == self.rank:
            await self._recording_errors(forward(blocks))
        else:
            await self._sender(peer).send(now, blocks, head_bytes, forward)
        self.traffic.count_sent(peer, sum(block.nbytes for block in blocks))

    async def _recording_errors(self, work: Awaitable[T]) -> T:
        """Await an operation of the inner transport, and update this end's state from its errors."""
        try:
            return await work
        except TransportError as error:
            self._record_error(error)
            raise

    def _record_error(self, error: TransportError) -> None:
        if isinstance(error, PeerLost):
            self._state.lose(error)
            if error.rank in self._senders:
                self._senders[error.rank].fail(error)
        elif isinstance(error, (PeerAborted, Closed)):
            self._end(error)

    def _end(self, error: TransportError) -> None:
        self._state.end_with(error)
        for sender in self._senders.values():
            sender.fail(error)

    async def _wait_ended(self) -> None:
        for sender in self._senders.values():
            await sender.wait_ended()

    def _sender(self, peer: int) -> DelayedSender:
        if peer not in self._senders:
            profile = self._profile.between(self.rank, peer)
            in_flight = 0.0 if profile.rate == math.inf else profile.rate * (profile.delay + profile.jitter)
            link = LinkTiming(profile, (self.rank, peer))
            ahead = AHEAD_BYTES / profile.rate
            self._senders[peer] = DelayedSender(link, SEND_BUFFER_BYTES + in_flight, ahead, self._record_error)
        return self._senders[peer]
