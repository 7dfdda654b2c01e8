"""The requests of one rank to the holders of the others: each in its turn, sent again if its holder is silent."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from transports.errors import PeerAborted, WireError
from transports.rpc.base import Endpoint, Rejected, Unreachable
from transports.rpc.reasons import BUSY, TOO_LARGE
from transports.rpc.world.notes import WorldNote, failed_rank
from transports.rpc.world.world_state import Blocks, WorldState
from transports.stream.sockets import CLOSE_S

MAX_SENDS_AT_ONCE = 1024
"""Messages and buffers that one rank sends to one other at once; further sends wait for their turn."""

_logger = logging.getLogger("pipelined.transports")
_logger.addHandler(logging.NullHandler())  # else Python prints the warnings of a logger without handlers


class WorldRequests:
    """Sends requests, and loses a holder that does not take them."""

    def __init__(self, endpoint: Endpoint, state: WorldState):
        self.holders = state.holders
        self._endpoint, self._state, self._pending = endpoint, state, state.pending
        self._turns = [asyncio.Semaphore(MAX_SENDS_AT_ONCE) for _ in self.holders.addresses]
        self._silent = set[int]()

    @property
    def activity(self) -> float:
        """A number that changes while bytes pass to or from the holders to which requests are pending."""
        seats = {*self._pending.values()}
        return sum(self._endpoint.activity_with(self.holders.addresses[seat]) for seat in seats)

    async def send(self, seat: int, note: WorldNote, blocks: Blocks) -> None:
        """Send a message to a holder. Raises: as `request`; also when this rank ends, or loses the holder."""
        await self.wait_answered(seat, self._send_in_turn(seat, note, blocks))

    async def send_to_any(self, rank: int, note: WorldNote, blocks: Blocks) -> None:
        """Send to each holder of a rank. Return when one has the message, or needs none; the others receive it later.

        Raises: as `Transport.send`.
        """
        remaining = self.holders.remaining(rank)
        sends = {self._start(seat, self._send_copy(seat, note, blocks)) for seat in remaining}
        while sends:
            done, sends = await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
            if any(not task.cancelled() and task.exception() is None for task in done):
                return
        self._state.transport.check(None)
        if not self.holders.has_closed(rank):
            self._state.transport.check_sendable(rank)

    async def wait_answered(self, seat: int, request: Coroutine[Any, Any, None]) -> None:
        """Await a request; it fails when this rank ends."""
        task = self._start(seat, request)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        if task.cancelled():
            self._state.transport.check(None)
            self._state.check_not_lost(seat)
        task.result()

    async def request(self, seat: int, note: WorldNote, blocks: Blocks = ()) -> None:
        """Send a request to a holder and await its reply.

        Raises:
            PeerLost: the rank cannot be reached, or has left the world. PeerAborted: some rank failed.
            WireError: the rank takes only smaller messages. Rejected: the rank has no memory for it ("busy").
        """
        try:
            await self._deliver(seat, note, blocks)
        except Unreachable as error:
            raise self._state.lose_unless_ended(seat, error) from error
        except Rejected as error:
            if error.reason == BUSY:
                raise
            if error.reason == TOO_LARGE:
                raise WireError(f"rank {self.holders.ranks[seat]} did not take the message: {error}") from error
            if error.reason == "aborted":
                self._state.end(PeerAborted(*failed_rank(error, self.holders.ranks[seat])))
            raise self._state.lose_unless_ended(seat, error) from error

    async def wait_all(self) -> None:
        """Wait for all requests. Give up after `CLOSE_S` seconds in which none ends and no byte moves."""
        pending = {*self._pending}
        done = set[asyncio.Future[Any]]()
        last_activity = -1.0
        while pending and (done or last_activity != self.activity):
            last_activity = self.activity
            done, pending = await asyncio.wait(pending, timeout=CLOSE_S)

    def _start(self, seat: int, request: Coroutine[Any, Any, None]) -> "asyncio.Future[None]":
        task = asyncio.ensure_future(request)
        self._pending[task] = seat
        task.add_done_callback(self._on_ended)
        return task

    def _on_ended(self, task: "asyncio.Future[None]") -> None:
        del self._pending[task]
        if not task.cancelled():
            task.exception()  # else asyncio reports it where no caller waits for this copy of a message any more

    async def _send_in_turn(self, seat: int, note: WorldNote, blocks: Blocks) -> None:
        async with self._turns[seat]:
            self._state.check_not_lost(seat)
            await self.request(seat, note, blocks)

    async def _send_copy(self, seat: int, note: WorldNote, blocks: Blocks) -> None:
        """Send one copy of a message; a holder that does not take it is lost."""
        try:
            await self._send_in_turn(seat, note, blocks)
        except (Rejected, WireError) as error:
            raise self._state.lose_unless_ended(seat, error) from error

    async def _deliver(self, seat: int, note: WorldNote, blocks: Blocks) -> None:
        """Send a request. Connect again while a process listens there and does not reply: it may have no core yet."""
        while True:
            try:
                await self._endpoint.request(self.holders.addresses[seat], note.topic, *blocks, note=note.pack())
                self._silent.discard(seat)
                return
            except Unreachable as error:
                if not error.silent:
                    raise
                if seat not in self._silent:
                    self._silent.add(seat)
                    rank = self.holders.ranks[seat]
                    _logger.warning("waits for rank %d: %s (world: %s)", rank, error, self._state.name)
