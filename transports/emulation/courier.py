"""Who carries messages to one peer over a slow link: keeps them while they are under way, hands them over in order.

The one rule: what has left, or soon will, is the link's and no more the sender's, so a send returns then, as it does on
a socket with room in its buffer; beyond the window it returns when the receiver has it. The running loop's clock is the
only one; its timers ring late on a real machine, and sending takes a while: both are learnt and allowed for.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from transports.emulation.link import SlowLink
from transports.errors import TransportError
from transports.event_loop import settle
from transports.wire.arrays import Block, copied

ROUNDING_S = 1e-6
LATEST_S = 1e-3  # later than this is no doing of timers, nor of sending
LEARNT = 1 / 4  # of what one message was late

Carry = Callable[[Sequence[Block]], Awaitable[None]]


class _Parcel:
    """A message under way, and whom to wake when its sender may have its memory back.

    Args:
        room: bytes of the window that it takes; 0 where the sender lends its memory until the receiver has it.
    """

    __slots__ = ("arrives", "blocks", "carry", "free", "handing", "room")

    def __init__(self, arrives: float, blocks: Sequence[Block], carry: Carry, room: int):
        self.arrives, self.blocks, self.carry, self.room = arrives, blocks, carry, room
        self.free: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.handing: asyncio.Task[None] | None = None

    def settle(self, error: Exception | None = None) -> None:
        settle(self.free, error)

    def withdraw(self) -> None:
        """Its sender was cancelled: it arrives whole or not at all."""
        self.free.cancel()
        if self.handing is not None:
            self.handing.cancel()


class Courier:
    """One direction to one peer.

    Args:
        window: bytes that may be under way, or wait at the receiver's end, in memory of the link's own.
        ahead: seconds before its last byte has left at which a message's memory is its sender's again.
        failed: told when a message could not be handed over.
    """

    def __init__(self, link: SlowLink, window: float, ahead: float, failed: Callable[[TransportError], None]):
        self._link, self._window, self._ahead, self._failed = link, window, ahead, failed
        self._late = 0.0
        self._loop = asyncio.get_running_loop()
        self._flying: deque[_Parcel] = deque()
        self._walk: asyncio.Task[None] | None = None
        self._handing: set[asyncio.Task[None]] = set()

    async def post(self, sent: float, blocks: Sequence[Block], head_bytes: int, carry: Carry) -> None:
        """Send blocks; return when their memory may be reused.

        Args:
            sent: the moment, by the loop's clock, from which the link has them.
            head_bytes: what travels beside the blocks.
            carry: hands the blocks, or a copy, to the receiver's end.
        Raises:
            TransportError: what `carry` raised, if that was before the return; or what was given to `fail`.
        """
        nbytes = sum(block.nbytes for block in blocks)
        passage = self._link.passage(sent, nbytes + head_bytes)
        parcel = self._parcel(passage.arrives, blocks, nbytes, carry)
        own = parcel.room or not nbytes
        leaving = self._loop.call_at(max(sent, passage.left - self._ahead), parcel.settle) if own else None
        try:
            await parcel.free
        except asyncio.CancelledError:
            parcel.withdraw()
            raise
        finally:
            if leaving is not None:
                leaving.cancel()

    async def landed(self) -> None:
        """Wait until nothing is under way any more: all has been given to the receiver's end."""
        while self._walk is not None and not self._walk.done():
            await asyncio.wait([self._walk])
        await asyncio.sleep(0)  # what the walk handed over at its end begins now

    async def ended(self) -> None:
        """Wait until the receiver's end has let go of everything."""
        while self._handing:
            await asyncio.wait(self._handing)

    def fail(self, error: TransportError) -> None:
        """Drop what is under way."""
        for parcel in self._flying:
            self._window += parcel.room
            parcel.settle(error)
        self._flying.clear()
        if self._walk is not None:
            self._walk.cancel()

    def _parcel(self, arrives: float, blocks: Sequence[Block], nbytes: int, carry: Carry) -> _Parcel:
        """Put a message on its way, in memory of the link's own as far as the window goes."""
        fits = nbytes <= self._window
        parcel = _Parcel(arrives, copied(blocks) if fits else blocks, carry, nbytes if fits else 0)
        self._window -= parcel.room
        self._flying.append(parcel)
        if self._walk is None or self._walk.done():
            self._walk = self._loop.create_task(self._carry_all())
        return parcel

    async def _carry_all(self) -> None:
        while self._flying:
            wait = self._flying[0].arrives - self._late - self._loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
                continue
            parcel = self._flying.popleft()
            parcel.handing = self._loop.create_task(self._hand_over(parcel))
            self._handing.add(parcel.handing)
            parcel.handing.add_done_callback(partial(self._over, parcel.room))

    def _learn(self, late: float) -> None:
        """Be so much earlier by and by; what is within the clock's own rounding teaches nothing."""
        if abs(late) > ROUNDING_S:
            self._late = min(max(0.0, self._late + LEARNT * late), LATEST_S)

    async def _hand_over(self, parcel: _Parcel) -> None:
        """Wait with the message at the receiver's end until it is asked for there, if need be.

        What a send takes that need not wait (0.15 ms on a core that slept) is learnt with the timers' lateness, and
        once more for the other end, which slept as long and takes as long to receive.
        """
        began, waited = self._loop.time(), []
        turn = self._loop.call_soon(waited.append, True)
        try:
            if not parcel.free.cancelled():
                await parcel.carry(parcel.blocks)
            taken = 0.0 if waited else self._loop.time() - began
            self._learn(began + 2 * taken - parcel.arrives)
            parcel.settle()
        except TransportError as error:
            parcel.settle(error)
            self._failed(error)
        finally:
            turn.cancel()

    def _over(self, room: int, handing: asyncio.Task[None]) -> None:
        self._window += room
        self._handing.discard(handing)
