"""The ranks of one world as one of them uses them: requests to the others, what they sent, and how the world ends.

A rank leaves the world by `close` or `abort`; until then it also answers for a world that another rank has aborted.

    ending here         operations raise     unanswered sends   what the other ranks raise     their later requests
    close               Closed               are awaited        PeerLost: it closed            rejected: "closed"
    abort, failed open  Closed               fail               PeerAborted with the reason    rejected: "closed"
    a peer aborted      PeerAborted          fail               the same, if they do not       rejected: "aborted"
                                                                know it when this rank closes
    a peer is lost      PeerLost, where      to that peer fail  nothing                        are taken
                        that peer is needed
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from transports.aio.nursery import Nursery
from transports.errors import Closed, PeerAborted, PeerLost, TransportError, WireError
from transports.inboxes import Inboxes
from transports.rpc.base import Endpoint, Party, Rejected, Unreachable
from transports.rpc.world.notes import REASON_CHARACTERS, BufferNote, EndNote, MessageNote, OpenNote, WorldNote
from transports.wire.arrays import Block
from transports.wire.frames import Header

GOODBYE_S = 1.0
"""Seconds that a leaving rank waits until the others have received its goodbye."""
MAX_IN_FLIGHT = 1024
"""Messages and buffers that one rank sends to one other at once; further sends wait for their turn."""
Blocks = tuple[Block, ...]

_logger = logging.getLogger("pipelined.transports")
_logger.addHandler(logging.NullHandler())  # else Python prints the warnings of a logger without handlers


class WorldOwner(ABC):
    """The table of the worlds of one endpoint."""

    @abstractmethod
    def forget(self, name: str) -> None:
        """This endpoint has left a world: reject its requests from now on."""


class WorldPeers:
    """The ranks of one world.

    Args:
        addresses: of the endpoint of each rank.
        max_bytes: the largest message, equal on all ranks.
    """

    def __init__(self, owner: WorldOwner, endpoint: Endpoint, name: str, addresses: Sequence[str], max_bytes: int):
        self._owner, self._endpoint, self.name = owner, endpoint, name
        self._addresses, self._max_bytes = tuple(addresses), max_bytes
        self.rank, self.world_size = addresses.index(endpoint.address), len(addresses)
        self.inboxes = Inboxes[tuple[Header, Blocks], Block](self.world_size)
        self._state = self.inboxes.state
        self._parties: dict[int, Party] = {}
        self._turns = [asyncio.Semaphore(MAX_IN_FLIGHT) for _ in addresses]
        self._unanswered = set[asyncio.Future[Any]]()
        self._silent = set[int]()
        self._left = False

    async def open(self) -> None:
        """Wait until every other rank has opened the world.

        Raises:
            PeerLost: a rank cannot be reached, or has left. PeerAborted: some rank failed, or its opening did.
        """
        async with Nursery() as tasks:
            for rank in self._others():
                tasks.create_task(self._until_answered(self._request(rank, OpenNote(self.name))))
        for rank in self._others():
            self._state.check_sendable(rank)

    async def send(self, rank: int, note: WorldNote, blocks: Blocks) -> None:
        """Send a message or a buffer; return when it is in the mailbox of its receiver.

        Raises:
            WireError: it exceeds the largest message. Else as `Transport.send`.
        """
        nbytes = sum(block.nbytes for block in blocks)
        if nbytes > self._max_bytes:
            raise WireError(f"the message is too large (bytes: {nbytes}, most: {self._max_bytes}); send it in pieces")
        await self._until_answered(self._send_in_turn(rank, note, blocks))

    async def abort(self, reason: str) -> None:
        """See `Transport.abort`; also after an opening that failed."""
        self.end(Closed(f"rank {self.rank} aborted: {reason}"))
        await self._leave(PeerAborted(self.rank, reason))

    async def close(self) -> None:
        """See `Transport.close`."""
        if self._unanswered:
            await asyncio.wait(self._unanswered)
        self.end(Closed(f"rank {self.rank} is closed"))
        await self._leave(PeerLost(self.rank, "it closed"))

    def kill(self, reason: str) -> None:
        """See `Transport.kill`."""
        self.end(Closed(f"rank {self.rank} is dead: {reason}"))
        self._endpoint.kill()

    def end(self, error: TransportError) -> None:
        """Fail every operation here, now and later, with the first reason given."""
        self.inboxes.end(error)
        for task in list(self._unanswered):
            task.cancel()

    def on_open(self, party: Party) -> None:
        """A party has opened the world. Raises Rejected: it is not a member, or the world has ended."""
        self._rank_of(party)
        self._check_open()

    def on_message(self, party: Party, note: MessageNote, blocks: Blocks) -> None:
        """A message has arrived. Raises Rejected: as `on_open`, or it is malformed."""
        rank, header = self._rank_of(party), note.header(blocks)
        self._check_open()
        self.inboxes.messages.arrived(rank, header.key, (header, blocks))

    def on_buffer(self, party: Party, note: BufferNote, blocks: Blocks) -> None:
        """A buffer has arrived. Raises Rejected: as `on_open`."""
        rank = self._rank_of(party)
        self._check_open()
        self.inboxes.buffers.arrived(rank, (note.channel,), blocks[0])

    def on_end(self, party: Party, note: EndNote) -> None:
        """A party leaves the world. Raises Rejected: it is not a member, or names no rank."""
        rank = self._rank_of(party)
        if not 0 <= note.rank < self.world_size:
            raise Rejected("malformed", why="no such rank", rank=note.rank, size=self.world_size)
        if note.failed:
            self.end(PeerAborted(note.rank, note.reason))
        else:
            self.inboxes.lose(PeerLost(rank, note.reason))

    def on_lost(self, party: Party) -> None:
        """The last connection with a party broke."""
        for rank, known in self._parties.items():
            if known == party:
                self.inboxes.lose(PeerLost(rank, "its connection broke"))

    async def _leave(self, error: PeerAborted | PeerLost) -> None:
        """Forget the world. Give the ranks that are not lost the error to raise, or the abort that ended this rank.

        Cost: at most `GOODBYE_S`.
        """
        if self._left:
            return
        self._left = True
        self._owner.forget(self.name)
        end = self._state.end
        note = EndNote.of(self.name, end if isinstance(end, PeerAborted) else error)
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S), Nursery() as tasks:
                for rank in self._others():
                    if rank not in self._state.lost:
                        tasks.create_task(self._send_goodbye(rank, note))

    async def _send_goodbye(self, rank: int, note: EndNote) -> None:
        with suppress(TransportError):
            await self._request(rank, note)

    async def _send_in_turn(self, rank: int, note: WorldNote, blocks: Blocks) -> None:
        async with self._turns[rank]:
            self._state.check_sendable(rank)
            await self._request(rank, note, blocks)

    async def _until_answered(self, request: Coroutine[Any, Any, None]) -> None:
        """Await a request. `close` waits for it; it fails when this rank ends."""
        task = asyncio.ensure_future(request)
        self._unanswered.add(task)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
            self._unanswered.discard(task)
        if task.cancelled():
            self._state.check(None)
        task.result()

    async def _request(self, rank: int, note: WorldNote, blocks: Blocks = ()) -> None:
        """Send a request to a rank and await its reply.

        Raises:
            PeerLost: the rank cannot be reached, or has left the world. PeerAborted: some rank failed.
            WireError: the rank takes only smaller messages. Rejected: the rank has no memory for it ("busy").
        """
        try:
            await self._delivered(rank, note, blocks)
        except Unreachable as error:
            raise self._lost(rank, error) from error
        except Rejected as error:
            if error.reason == "busy":
                raise
            if error.reason == "too large":
                raise WireError(f"rank {rank} did not take the message: {error}") from error
            if error.reason == "aborted":
                self.end(PeerAborted(*_culprit(error, rank)))
            raise self._lost(rank, error) from error

    async def _delivered(self, rank: int, note: WorldNote, blocks: Blocks) -> None:
        """Send a request; connect again while the process there listens and does not reply, as one without a core."""
        while True:
            try:
                await self._endpoint.request(self._addresses[rank], note.topic, *blocks, note=note.pack())
                self._silent.discard(rank)
                return
            except Unreachable as error:
                if not error.silent:
                    raise
                if rank not in self._silent:
                    self._silent.add(rank)
                    _logger.warning("waits for rank %d: %s (world: %s)", rank, error, self.name)

    def _lost(self, rank: int, error: TransportError) -> TransportError:
        """Lose a rank, unless this rank has ended. Returns the error for its operations."""
        if self._state.end is None:
            self.inboxes.lose(PeerLost(rank, str(error)))
        return (self._state.end or self._state.lost[rank]).with_traceback(None)

    def _check_open(self) -> None:
        """Raises Rejected: some rank has aborted."""
        if isinstance(end := self._state.end, PeerAborted):
            raise Rejected("aborted", rank=end.rank, why=end.reason[:REASON_CHARACTERS])

    def _rank_of(self, party: Party) -> int:
        """The rank of a party, whose identity the handshake has proved.

        Raises:
            Rejected: the party is not a member of the world, or has restarted since its first request.
        """
        if party.address not in self._addresses:
            raise Rejected("not a member", address=party.address)
        rank = self._addresses.index(party.address)
        if self._parties.setdefault(rank, party) != party:
            raise Rejected("restarted", address=party.address)
        return rank

    def _others(self) -> list[int]:
        return [rank for rank in range(self.world_size) if rank != self.rank]


def _culprit(error: Rejected, sender: int) -> tuple[int, str]:
    """The rank that failed and its reason, as a rejection names them; a malformed one blames its sender."""
    rank, why = error.facts.get("rank"), error.facts.get("why")
    return (rank, why) if type(rank) is int and type(why) is str else (sender, str(error))
