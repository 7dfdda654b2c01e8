"""The ranks of one world as one of them uses them: requests to the others, what they sent, and how the world ends.

A rank leaves the world by `close` or `abort`; until then it also answers for a world that another rank has aborted.

    ending here         operations raise     unanswered sends   what the other ranks raise     their later requests
    close               Closed               are awaited        PeerLost: it closed            rejected: "closed"
    abort, failed open  Closed               fail               PeerAborted with the reason    rejected: "closed"
    a peer aborted      PeerAborted          fail               the same, if they do not       rejected: "aborted"
                                                                know it when this rank closes
    a peer is lost      PeerLost, where      to that peer fail  nothing                        are taken
                        that peer is needed

A rank with a backup has two holders: see `transports.rpc.world.holders`. It is lost with its last holder, and a holder
that aborts while the other one is there, or has closed, is lost alone.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from typing import Any

from transports.aio.nursery import Nursery
from transports.errors import Closed, PeerAborted, PeerLost, TransportError, WireError
from transports.inboxes import Inboxes
from transports.mailbox import Mailbox
from transports.rpc.base import Endpoint, Party, Rejected, Unreachable
from transports.rpc.reasons import BUSY, TOO_LARGE
from transports.rpc.world.holders import Holders
from transports.rpc.world.notes import BufferNote, Departure, EndNote, MessageNote, OpenNote, WorldNote, failed_rank
from transports.rpc.world.pending_requests import PendingRequests
from transports.state import ABORT_CHARACTERS
from transports.wire.arrays import Block, copied
from transports.wire.frames import Header

GOODBYE_S = 1.0
"""Seconds that a leaving rank waits until the others have received its goodbye."""
MAX_SENDS_AT_ONCE = 1024
"""Messages and buffers that one rank sends to one other at once; further sends wait for their turn."""
Blocks = tuple[Block, ...]

_logger = logging.getLogger("pipelined.transports")
_logger.addHandler(logging.NullHandler())  # else Python prints the warnings of a logger without handlers


class World:
    """A world as one of its holders uses it: requests to the others, and what they sent.

    Args:
        max_bytes: the largest message, equal on all ranks.
        on_left: called when this endpoint has left the world; its requests are rejected from then on.
    Attributes:
        inboxes: what the other ranks sent.
        from_twin: what the twin sent, under this rank.
    """

    def __init__(
        self, endpoint: Endpoint, name: str, holders: Holders, max_bytes: int, on_left: Callable[[str], object]
    ):
        self.endpoint, self.name = endpoint, name
        self.holders, self._on_left = holders, on_left
        self._addresses, self._max_bytes = holders.addresses, max_bytes
        self.rank, self.world_size = holders.ranks[holders.own], holders.world_size
        self.inboxes = Inboxes[tuple[Header, Blocks], Block](self.world_size)
        self.from_twin = Mailbox[tuple[Header, Blocks]](2)
        self._state = self.inboxes.state
        self._turns = [asyncio.Semaphore(MAX_SENDS_AT_ONCE) for _ in self._addresses]
        self._pending = PendingRequests(lambda seat: endpoint.activity_with(holders.addresses[seat]))
        self._silent, self._has_left = set[int](), False
        self._bytes_received = 0

    @property
    def activity(self) -> int:
        """See `Transport.activity`. A message that is not whole yet is counted at its sender."""
        return self._bytes_received + int(self._pending.activity)

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
                self._state.check_sendable(rank)

    async def send(self, rank: int, note: WorldNote, blocks: Blocks) -> None:
        """Send a message or a buffer; return when it is in the mailbox of its receiver.

        Raises:
            WireError: it exceeds the largest message. Else as `Transport.send`.
        """
        nbytes = sum(block.nbytes for block in blocks)
        if nbytes > self._max_bytes:
            raise WireError(f"the message is too large (bytes: {nbytes}, most: {self._max_bytes}); send it in pieces")
        if self.holders.have_backups:
            await self._wait_any_answered(rank, note, copied(blocks))
        else:
            self._state.check_sendable(rank)
            await self._wait_answered(rank, self._send_in_turn(rank, note, blocks))

    async def send_twin(self, note: WorldNote, blocks: Blocks) -> None:
        """Send a message to the twin; nothing if there is none. Raises: as `send`."""
        if (twin := self.holders.twin) is not None:
            await self._wait_answered(twin, self._send_in_turn(twin, note, blocks))

    async def abort(self, reason: str) -> None:
        """See `Transport.abort`; also after an opening that failed."""
        self.end(Closed(f"rank {self.rank} aborted: {reason}"))
        await self._leave(self.rank, reason, Departure.FAILED if self.holders.is_last else Departure.LOST)

    async def close(self) -> None:
        """See `Transport.close`. Messages to a stopped rank fail after `CLOSE_S` in which no byte passes."""
        await self._pending.wait()
        self.end(Closed(f"rank {self.rank} is closed"))
        await self._leave(self.rank, "it closed", Departure.CLOSED)

    def end(self, error: TransportError) -> None:
        """Fail every operation here, now and later, with the first reason given."""
        self.from_twin.fail_all(self.inboxes.end(error))
        self._pending.cancel()

    def on_open(self, party: Party) -> None:
        """A party has opened the world. Raises Rejected: it is no holder, or the world has ended."""
        self.holders.seat_of(party)
        self._check_open()

    def on_message(self, party: Party, note: MessageNote, blocks: Blocks) -> None:
        """A message has arrived. Raises Rejected: as `on_open`, or it is malformed, or its sender is lost."""
        seat = self.holders.seat_of(party)
        header = note.header(blocks)
        self._check_taken(seat)
        self._bytes_received += header.nbytes
        rank = self.holders.ranks[seat]
        if rank == self.rank:
            self.from_twin.put(rank, header.key, (header, blocks))
        elif self.holders.record_copy(seat, "message", header.key):
            self.inboxes.messages.put(rank, header.key, (header, blocks))

    def on_buffer(self, party: Party, note: BufferNote, blocks: Blocks) -> None:
        """A buffer has arrived. Raises Rejected: as `on_message`."""
        seat = self.holders.seat_of(party)
        self._check_taken(seat)
        self._bytes_received += blocks[0].nbytes
        if self.holders.record_copy(seat, "buffer", (note.channel,)):
            self.inboxes.buffers.put(self.holders.ranks[seat], (note.channel,), blocks[0])

    def on_end(self, party: Party, note: EndNote) -> None:
        """A party leaves the world. Raises Rejected: it is no holder, or names no rank."""
        seat = self.holders.seat_of(party)
        if not 0 <= note.rank < self.world_size:
            raise Rejected("malformed", why="no such rank", rank=note.rank, size=self.world_size)
        if note.departure is Departure.FAILED:
            return self.end(PeerAborted(note.rank, note.reason))
        if note.departure is Departure.CLOSED:
            self.holders.closed.add(seat)
        self._lose(seat, note.reason)

    def on_lost(self, party: Party) -> None:
        """The last connection with a party broke."""
        for seat in [seat for seat, known in self.holders.parties.items() if known == party]:
            self._lose(seat, "its connection broke")

    def on_gone(self, addresses: Collection[str]) -> None:
        """Lose the parties at these addresses, even if their connections do not break."""
        if self.holders.have_backups:
            for seat in self.holders.others:
                if self._addresses[seat] in addresses:
                    self._lose(seat, "it takes part no more")

    def _lose(self, seat: int, reason: str) -> None:
        """Lose a holder, and with its last holder a rank."""
        rank = self.holders.ranks[seat]
        error = self.holders.lost.setdefault(seat, PeerLost(rank, reason))
        if rank == self.rank:
            self.from_twin.fail_peer(rank, error)
        elif not self.holders.remaining(rank):
            self.inboxes.lose(error)
        if self.holders.have_backups:  # a silent holder never answers
            self._pending.cancel(seat)

    async def _leave(self, rank: int, reason: str, departure: Departure) -> None:
        """Forget the world; within `GOODBYE_S` tell the other holders this, or the abort that ended this rank."""
        if self._has_left:
            return
        self._has_left = True
        self._on_left(self.name)
        if isinstance(ended_by := self._state.ended_by, PeerAborted):
            rank, reason, departure = ended_by.rank, ended_by.reason, Departure.FAILED
        note = EndNote(self.name, rank, reason[:ABORT_CHARACTERS], departure)
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S), Nursery() as tasks:
                for seat in self.holders.others:
                    if seat not in self.holders.lost:
                        tasks.create_task(self._send_goodbye(seat, note))

    async def _send_goodbye(self, seat: int, note: EndNote) -> None:
        with suppress(TransportError):
            await self._request(seat, note)

    async def _wait_opened_by(self, seat: int) -> None:
        """Wait until a holder has opened the world. Raises: as `open`, if its rank has no other holder."""
        try:
            await self._wait_answered(seat, self._request(seat, OpenNote(self.name)))
        except PeerLost:
            if not self.holders.remaining(self.holders.ranks[seat]):
                raise

    async def _send_in_turn(self, seat: int, note: WorldNote, blocks: Blocks) -> None:
        async with self._turns[seat]:
            if seat in self.holders.lost:
                raise self.holders.lost[seat].with_traceback(None)
            await self._request(seat, note, blocks)

    async def _wait_answered(self, seat: int, request: Coroutine[Any, Any, None]) -> None:
        """Await a request; it fails when this rank ends."""
        task = await self._pending.run(seat, request)
        if task.cancelled():
            self._state.check(None)
            if seat in self.holders.lost:
                raise self.holders.lost[seat].with_traceback(None)
        task.result()

    async def _wait_any_answered(self, rank: int, note: WorldNote, blocks: Blocks) -> None:
        """Send to each holder of a rank. Return when one has the message, or needs none; the others receive it later.

        Raises: as `send`.
        """
        remaining = self.holders.remaining(rank)
        sends = {self._pending.start(seat, self._send_copy(seat, note, blocks)) for seat in remaining}
        while sends:
            done, sends = await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
            if any(not task.cancelled() and task.exception() is None for task in done):
                return
        self._state.check(None)
        if not self.holders.has_closed(rank):
            self._state.check_sendable(rank)

    async def _send_copy(self, seat: int, note: WorldNote, blocks: Blocks) -> None:
        """Send one copy of a message; a holder that does not take it is lost."""
        try:
            await self._send_in_turn(seat, note, blocks)
        except (Rejected, WireError) as error:
            raise self._lose_unless_ended(seat, error) from error

    async def _request(self, seat: int, note: WorldNote, blocks: Blocks = ()) -> None:
        """Send a request to a holder and await its reply.

        Raises:
            PeerLost: the rank cannot be reached, or has left the world. PeerAborted: some rank failed.
            WireError: the rank takes only smaller messages. Rejected: the rank has no memory for it ("busy").
        """
        try:
            await self._deliver(seat, note, blocks)
        except Unreachable as error:
            raise self._lose_unless_ended(seat, error) from error
        except Rejected as error:
            if error.reason == BUSY:
                raise
            if error.reason == TOO_LARGE:
                raise WireError(f"rank {self.holders.ranks[seat]} did not take the message: {error}") from error
            if error.reason == "aborted":
                self.end(PeerAborted(*failed_rank(error, self.holders.ranks[seat])))
            raise self._lose_unless_ended(seat, error) from error

    async def _deliver(self, seat: int, note: WorldNote, blocks: Blocks) -> None:
        """Send a request. Connect again while a process listens there and does not reply: it may have no core yet."""
        while True:
            try:
                await self.endpoint.request(self._addresses[seat], note.topic, *blocks, note=note.pack())
                self._silent.discard(seat)
                return
            except Unreachable as error:
                if not error.silent:
                    raise
                if seat not in self._silent:
                    self._silent.add(seat)
                    rank = self.holders.ranks[seat]
                    _logger.warning("waits for rank %d: %s (world: %s)", rank, error, self.name)

    def _lose_unless_ended(self, seat: int, error: TransportError) -> TransportError:
        """Lose a holder, unless this rank has ended. Returns the error for its operations."""
        if self._state.ended_by is None:
            self._lose(seat, str(error))
        return (self._state.ended_by or self.holders.lost[seat]).with_traceback(None)

    def _check_taken(self, seat: int) -> None:
        """Raises Rejected: the world has ended, or the sender is lost: its messages might leave a gap."""
        self._check_open()
        if self.holders.have_backups and seat in self.holders.lost:
            raise Rejected("closed", world=self.name[:64])

    def _check_open(self) -> None:
        """Raises Rejected: some rank has aborted."""
        if isinstance(error := self._state.ended_by, PeerAborted):
            raise Rejected("aborted", rank=error.rank, why=error.reason[:ABORT_CHARACTERS])
