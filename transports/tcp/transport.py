"""The `tcp` transport: one connection between each two ranks, or a Unix socket between ranks of one machine.

Bytes are read as soon as they come, directly into the receiver's arrays if its receive is posted, else into new memory;
so no send waits for the receive of another message. Beyond a limit, messages stay at their sender until their receive
is posted (`transports.tcp.peer`). `transports.tcp.join` connects and authenticates the ranks.
"""

import asyncio
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar

from transports.base import Message, Transport
from transports.errors import Closed, SizeMismatch
from transports.mailbox import Arrival, Mailbox
from transports.shm.cores import own_cores
from transports.state import ABORT_CHARACTERS, ABORT_S
from transports.stream.connection import Ending
from transports.stream.incoming import IncomingBody, IncomingBuffer, IncomingMessage, ReceiveMemory, WrongSize
from transports.stream.reader import copy_into_body
from transports.stream.sockets import CLOSE_S
from transports.tcp.flow_control import credit_limit
from transports.tcp.join.config import TcpConfig
from transports.tcp.join.meeting_points import MeetingPoint, meeting_point
from transports.tcp.join.rendezvous import join_world
from transports.tcp.join.same_host import upgrade_local_peers
from transports.tcp.peer import TcpKind, TcpPeers
from transports.urls import ParsedUrl
from transports.wire.arrays import Block, as_targets, copied, flat_bytes, writable_bytes
from transports.wire.frames import Key, encode, pack_header, unpack_header

Item = TypeVar("Item", bound=IncomingBody[Any])
PREFIX_BYTES = 64 << 10
"""If a buffer of an unexpected size has at most this many bytes, the error includes its beginning."""
BUSY_LOOP_S = 200e-6
"""Seconds to keep the loop awake; a short reply comes within this time if its sender does nothing else first."""


async def open_url(url: ParsedUrl) -> "TcpTransport":
    """Open `tcp://[HOST:PORT][?wait=SECONDS&unix=no]`; parts missing in the URL come from torchrun's variables.

    RANK and WORLD_SIZE give this rank; PIPELINED_KEY or PIPELINED_KEY_FILE hold the shared key.

    Raises:
        ValueError: the URL is malformed. RendezvousError: the ranks could not connect.
        AuthenticationError: the ranks' keys differ.
    """
    config = TcpConfig.of(url, os.environ)
    return await connect_ranks(config, meeting_point(config), credit_limit(config.world_size))


async def connect_ranks(config: TcpConfig, point: MeetingPoint, max_kept: int) -> "TcpTransport":
    """Connect this rank to all others; all ranks call this.

    Args:
        max_kept: as for `TcpTransport`.
    Raises:
        RendezvousError: the ranks could not connect; no socket is left open.
    """
    peers = await join_world(config, point)
    try:
        cores = await upgrade_local_peers(config, peers)
    except BaseException:
        for sock in peers.values():
            sock.close()
        raise
    return TcpTransport(config.rank, config.world_size, peers, max_kept=max_kept, nodes=peers.nodes, cores=cores)


class TcpTransport(Transport):
    """One rank of a world.

    Args:
        sockets: one connected, non-blocking, authenticated socket for each other rank; owned from now on.
        max_kept: bytes of unexpected messages that are kept here from each peer; equal on all ranks.
        nodes: for each rank, the lowest rank of its machine; if empty, all ranks are on one machine.
        cores: distinct cores of all ranks of this machine; 0: count this rank's own cores.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        sockets: dict[int, socket.socket],
        *,
        max_kept: int,
        nodes: tuple[int, ...] = (),
        cores: int = 0,
    ):
        super().__init__(rank, world_size)
        self._nodes = nodes or super().nodes
        core_per_rank = len(self.ranks_here) <= (cores or len(own_cores()))
        self._busy_poll = BusyPoll(core_per_rank)
        self._peers = TcpPeers(sockets, max_kept, ranks_with_own_core=self.ranks_here if core_per_rank else ())
        inboxes = self._peers.inboxes
        self._state, self._messages, self._buffers = inboxes.state, inboxes.messages, inboxes.buffers

    @property
    def nodes(self) -> tuple[int, ...]:
        return self._nodes

    @property
    def activity(self) -> int:
        return self.traffic.bytes_received - self._peers.missing

    def last_key(self, peer: int) -> Key | None:
        return self._messages.last_key(peer)

    async def send(self, peer: int, key: Key, *arrays: Any, note: Any = None) -> None:
        self._state.check_sendable(peer)
        blocks = tuple(Block.of(array) for array in arrays)
        if peer == self.rank:
            header = unpack_header(pack_header(key, blocks, note))
            self._messages.put(peer, key, IncomingMessage.complete(header, copied(blocks)))
        else:
            await self._peers[peer].send_message(key, blocks, note)
        self.traffic.count_sent(peer, sum([block.nbytes for block in blocks]))

    async def receive(self, peer: int | None, key: Key, into: Sequence[Any] | None = None) -> Message:
        self._state.check(peer)
        arrival = await self._take(self._messages, peer, key, ReceiveMemory(as_targets(into)))
        incoming = arrival.item
        self.traffic.count_received(incoming.nbytes)
        return Message(arrival.peer, incoming.header.key, incoming.blocks, incoming.header.note)

    def probe(self, peer: int | None, key: Key) -> bool:
        return self._messages.probe(peer, key)

    async def send_buffer(self, peer: int, channel: int, buffer: memoryview) -> None:
        self._state.check_sendable(peer, channel)
        view = flat_bytes(buffer)
        if peer == self.rank:
            incoming = IncomingBuffer(view.nbytes)
            copy_into_body(view, incoming)
            self._buffers.put(peer, (channel,), incoming)
        else:
            await self._peers[peer].send_buffer(channel, view)
        self.traffic.count_sent(peer, view.nbytes)

    async def receive_buffer(self, peer: int, channel: int, buffer: memoryview) -> None:
        self._state.check(peer, channel)
        view = writable_bytes(buffer)
        try:
            await self._take(self._buffers, peer, (channel,), ReceiveMemory(view))
        except WrongSize as error:
            raise await self._mismatch(peer, channel, view.nbytes, error.received) from None
        self.traffic.count_received(view.nbytes)

    async def _mismatch(self, peer: int, channel: int, expected: int, received: int) -> SizeMismatch:
        """The error for a buffer of another size; includes the beginning of a short buffer that is still available."""
        prefix = memoryview(b"")
        if received <= PREFIX_BYTES and self._buffers.probe(peer, (channel,)):
            view = memoryview(bytearray(received))
            with suppress(WrongSize):  # another receive has taken it
                await self._take(self._buffers, peer, (channel,), ReceiveMemory(view))
                prefix = view
        return SizeMismatch(peer, channel, expected, received, prefix[:expected])

    def set_computing(self, busy: bool) -> None:
        self._busy_poll.set_computing(busy)

    async def abort(self, reason: str) -> None:
        last = encode(TcpKind.ABORT, note=reason[:ABORT_CHARACTERS])
        self._peers.end(Ending.ABORT, Closed(f"rank {self.rank} aborted: {reason}"), last)
        with suppress(TimeoutError):
            async with asyncio.timeout(ABORT_S):
                await self._peers.wait_closed(ABORT_S)

    async def close(self) -> None:
        self._peers.end(Ending.CLOSE, Closed(f"rank {self.rank} is closed"), encode(TcpKind.GOODBYE))
        await self._peers.wait_closed(CLOSE_S)

    async def _take(
        self, mailbox: Mailbox[Item], peer: int | None, key: Key, memory: ReceiveMemory[Any]
    ) -> Arrival[Item]:
        """Take a message or buffer, and wait for its last byte. Cancelled: put it back, and return the memory."""
        arrival = None
        try:
            if not mailbox.probe(peer, key):
                self._busy_poll.start()
            arrival = await mailbox.take(peer, key, memory)
            await arrival.item.wait_complete()
        except asyncio.CancelledError:
            memory.detach()
            if arrival is not None:
                mailbox.put_back(arrival)
            raise
        return arrival


class BusyPoll:
    """Keeps the loop of a waiting rank awake for `BUSY_LOOP_S` seconds, before it sleeps in the kernel.

    Sleeping and waking cost about 25 µs for each message, half of the rest of a short message's time. The loop is not
    kept awake while this rank computes, or if ranks outnumber cores: another thread or rank needs the core then.

    Args:
        core_per_rank: whether every rank of this machine has a core.
    """

    def __init__(self, core_per_rank: bool):
        self._loop = asyncio.get_running_loop()
        self._seconds = BUSY_LOOP_S if core_per_rank else 0.0
        self._computing = self._polling = False
        self._until = 0.0

    def start(self) -> None:
        """A receive begins to wait: keep the loop awake for `BUSY_LOOP_S` from now on."""
        if not self._seconds or self._computing:
            return
        self._until = self._loop.time() + self._seconds
        if not self._polling:
            self._polling = True
            self._loop.call_soon(self._poll)

    def set_computing(self, busy: bool) -> None:
        """State whether this rank computes; if so, the loop may sleep at once."""
        self._computing = busy

    def _poll(self) -> None:
        """Let the loop poll its sockets once, and schedule this call again."""
        self._polling = not self._computing and self._loop.time() < self._until
        if self._polling:
            os.sched_yield()
            self._loop.call_soon(self._poll)
