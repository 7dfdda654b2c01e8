"""A world as one of its ranks uses it: requests to the other ranks, what they sent, and how the world ends.

A rank leaves the world by `close` or `abort`. Until then it replies to requests, also when another rank has aborted.

    ending here         operations raise     unanswered sends   what the other ranks raise     their later requests
    close               Closed               are awaited        PeerLost: it closed            rejected: "closed"
    abort, failed open  Closed               fail               PeerAborted with the reason    rejected: "closed"
    a peer aborted      PeerAborted          fail               PeerAborted, once this rank    rejected: "aborted"
                                                                closes
    a peer is lost      PeerLost, where      to that peer fail  nothing                        are accepted
                        that peer is needed

A rank with a backup has two holders: see `transports.rpc.world.holders`. It is lost with its last holder, and a holder
that aborts while the other one is there, or has closed, is lost alone.
"""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress

from transports.aio.nursery import Nursery
from transports.errors import Closed, PeerAborted, PeerLost, TransportError, WireError
from transports.rpc.base import Endpoint, Party, Rejected
from transports.rpc.world.holders import Holders
from transports.rpc.world.notes import BufferNote, Departure, EndNote, MessageNote, OpenNote, WorldNote
from transports.rpc.world.requests import WorldRequests
from transports.rpc.world.world_state import Blocks, WorldState
from transports.state import ABORT_CHARACTERS
from transports.wire.arrays import copied

GOODBYE_S = 1.0
"""Seconds that a leaving rank waits until the others have received its goodbye."""


class World:
    """A world as one of its holders uses it: requests to the others, and what they sent.

    Args:
        max_bytes: the largest message, equal on all ranks.
        on_left: called when this endpoint has left the world; its requests are rejected from then on.
    Attributes:
        state: what the others sent, and which of them are lost.
    """

    def __init__(
        self, endpoint: Endpoint, name: str, holders: Holders, max_bytes: int, on_left: Callable[[str], object]
    ):
        self.endpoint, self.name, self.holders = endpoint, name, holders
        self._max_bytes, self._on_left = max_bytes, on_left
        self.state = WorldState(name, holders)
        self._requests = WorldRequests(endpoint, self.state)
        self.rank = self.state.rank
        self.world_size = holders.world_size
        self._has_left = False
        self._bytes_received = 0

    @property
    def activity(self) -> int:
        """See `Transport.activity`. A message that is not whole yet is counted at its sender."""
        return self._bytes_received + int(self._requests.activity)

    async def open(self) -> None:
        """Wait until every other rank has opened the world.

        Raises:
            PeerLost: a rank cannot be reached, or has left. PeerAborted: some rank failed, or its opening did.
        """
        async with Nursery() as tasks:
            for seat in self.holders.others:
                if seat not in self.holders.lost:
                    tasks.create_task(self._wait_opened_by(seat))
        for rank in range(self.world_size):
            if rank != self.rank:
                self.state.transport.check_sendable(rank)

    async def send(self, rank: int, note: WorldNote, blocks: Blocks) -> None:
        """Send a message or a buffer; return when it is in the mailbox of its receiver.

        Raises:
            WireError: it exceeds the largest message. Else as `Transport.send`.
        """
        nbytes = sum(block.nbytes for block in blocks)
        if nbytes > self._max_bytes:
            raise WireError(f"the message is too large (bytes: {nbytes}, most: {self._max_bytes}); send it in pieces")
        if self.holders.have_backups:
            await self._requests.send_to_any(rank, note, copied(blocks))
        else:
            self.state.transport.check_sendable(rank)
            await self._requests.send(rank, note, blocks)

    async def send_twin(self, note: WorldNote, blocks: Blocks) -> None:
        """Send a message to the twin; nothing if there is none. Raises: as `send`."""
        if (twin := self.holders.twin) is not None:
            await self._requests.send(twin, note, blocks)

    async def abort(self, reason: str) -> None:
        """See `Transport.abort`; also after an opening that failed."""
        self.state.end(Closed(f"rank {self.rank} aborted: {reason}"))
        await self._leave(self.rank, reason, Departure.FAILED if self.holders.is_last else Departure.LOST)

    async def close(self) -> None:
        """See `Transport.close`. Messages to a stopped rank fail after `CLOSE_S` in which no byte passes."""
        await self._requests.wait_all()
        self.state.end(Closed(f"rank {self.rank} is closed"))
        await self._leave(self.rank, "it closed", Departure.CLOSED)

    def on_open(self, party: Party) -> None:
        """A party has opened the world. Raises Rejected: it is no holder, or the world has ended."""
        self.holders.seat_of(party)
        self.state.check_open()

    def on_message(self, party: Party, note: MessageNote, blocks: Blocks) -> None:
        """A message has arrived. Raises Rejected: as `on_open`, or it is malformed, or its sender is lost."""
        seat = self.holders.seat_of(party)
        header = note.header(blocks)
        self.state.check_taken(seat)
        self._bytes_received += header.nbytes
        rank = self.holders.ranks[seat]
        if rank == self.rank:
            self.state.from_twin.put(rank, header.key, (header, blocks))
        elif self.holders.record_copy(seat, "message", header.key):
            self.state.inboxes.messages.put(rank, header.key, (header, blocks))

    def on_buffer(self, party: Party, note: BufferNote, blocks: Blocks) -> None:
        """A buffer has arrived. Raises Rejected: as `on_message`."""
        seat = self.holders.seat_of(party)
        self.state.check_taken(seat)
        self._bytes_received += blocks[0].nbytes
        if self.holders.record_copy(seat, "buffer", (note.channel,)):
            self.state.inboxes.buffers.put(self.holders.ranks[seat], (note.channel,), blocks[0])

    def on_end(self, party: Party, note: EndNote) -> None:
        """A party leaves the world. Raises Rejected: it is no holder, or names no rank."""
        seat = self.holders.seat_of(party)
        if not 0 <= note.rank < self.world_size:
            raise Rejected("malformed", why="no such rank", rank=note.rank, size=self.world_size)
        if note.departure is Departure.FAILED:
            return self.state.end(PeerAborted(note.rank, note.reason))
        if note.departure is Departure.CLOSED:
            self.holders.closed.add(seat)
        self.state.lose(seat, note.reason)

    def on_lost(self, party: Party) -> None:
        """The last connection with a party broke."""
        for seat in [seat for seat, party_of_seat in self.holders.parties.items() if party_of_seat == party]:
            self.state.lose(seat, "its connection broke")

    def on_gone(self, addresses: Collection[str]) -> None:
        """Lose the parties at these addresses, even if their connections do not break."""
        if self.holders.have_backups:
            for seat in self.holders.others:
                if self.holders.addresses[seat] in addresses:
                    self.state.lose(seat, "it takes part no more")

    async def _leave(self, rank: int, reason: str, departure: Departure) -> None:
        """Forget the world; within `GOODBYE_S` tell the other holders this, or the abort that ended this rank."""
        if self._has_left:
            return
        self._has_left = True
        self._on_left(self.name)
        if isinstance(ended_by := self.state.transport.ended_by, PeerAborted):
            rank, reason, departure = ended_by.rank, ended_by.reason, Departure.FAILED
        note = EndNote(self.name, rank, reason[:ABORT_CHARACTERS], departure)
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S), Nursery() as tasks:
                for seat in self.holders.others:
                    if seat not in self.holders.lost:
                        tasks.create_task(self._send_goodbye(seat, note))

    async def _send_goodbye(self, seat: int, note: EndNote) -> None:
        with suppress(TransportError):
            await self._requests.request(seat, note)

    async def _wait_opened_by(self, seat: int) -> None:
        """Wait until a holder has opened the world. Raises: as `open`, if its rank has no other holder."""
        try:
            await self._requests.wait_answered(seat, self._requests.request(seat, OpenNote(self.name)))
        except PeerLost:
            if not self.holders.remaining(self.holders.ranks[seat]):
                raise
