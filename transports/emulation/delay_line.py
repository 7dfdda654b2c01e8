"""One direction of an emulated network: messages arrive later, in order, or are held while the link is cut.

No message is dropped. `DelayLine` delivers frames by a callback; each end shares its access line among all its
directions:

    up the sender's access line | the link: rate, delay ± jitter | down the receiver's access line

`DelayedSender` does the same before the `send` of a transport. A send returns when the link has accepted the message,
as on a socket with room in its buffer; or, beyond the window, when the receiver has it. On a real machine timers fire
late, and sending takes time: `DelayedSender` measures both, and starts that much earlier.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from transports.emulation.link import SlowLink
from transports.errors import TransportError
from transports.event_loop import settle
from transports.wire.arrays import Block, copied

ROUNDING_S = 1e-6
LATEST_S = 1e-3  # more lateness than this is not caused by timers or by sending
LEARNT = 1 / 4  # the share of one message's lateness that the correction takes over

Carry = Callable[[Sequence[Block]], Awaitable[None]]


class AccessLine:
    """One direction of a party's line to all others; it carries one message after another, in order of arrival.

    Args:
        rate: bytes a second.
    """

    __slots__ = ("_free", "rate")

    def __init__(self, rate: float):
        self.rate, self._free = rate, -math.inf

    def carry(self, first: float, last: float, nbytes: float) -> float:
        """The time when the last of these bytes has passed; they reach the line from `first` to `last`."""
        self._free = max(last, max(first, self._free) + nbytes / self.rate)
        return self._free


class DelayLine:
    """The messages under way from one end to the other.

    Args:
        link: computes when a message arrives.
        passes: whether messages can arrive now; call `go_on` after its result changes. Default: always.
        lines: the sender's line up and the receiver's line down; None: unlimited. A message on both takes the time of
            the slower line, not the sum; the time of the link's own rate is added.
    """

    __slots__ = ("_down", "_link", "_loop", "_not_before", "_passes", "_queue", "_ringing", "_timer", "_up")

    def __init__(
        self,
        link: SlowLink,
        passes: Callable[[], bool] = lambda: True,
        lines: tuple[AccessLine | None, AccessLine | None] = (None, None),
    ):
        self._link, self._passes = link, passes
        self._up, self._down = lines
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[float, Callable[[], None], float | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._not_before, self._ringing = 0.0, False

    def send(self, nbytes: float, deliver: Callable[[], None]) -> float:
        """Call `deliver` when this many bytes have arrived. Returns the time when the last byte has left."""
        now = self._loop.time()
        passage = self._link.passage(self._up.carry(now, now, nbytes) if self._up else now, nbytes)
        self._queue.append((passage.arrives, deliver, nbytes if self._down else None))
        if self._timer is None and not self._ringing:
            self._arm()
        return passage.left

    def close(self) -> None:
        """Drop all messages under way."""
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()

    def go_on(self, after: float = 0.0) -> None:
        """Check again whether messages can pass; overdue messages arrive `after` seconds from now."""
        self._not_before = self._loop.time() + after
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._ringing:
            self._arm()

    def _through(self, arrives: float, nbytes: float) -> float:
        """The time when bytes that arrive over the link have passed the receiver's line."""
        first = arrives - nbytes / self._up.rate if self._up else arrives
        return self._down.carry(first, arrives, nbytes)

    def _arm(self) -> None:
        if self._queue and self._passes():
            self._timer = self._loop.call_at(max(self._queue[0][0], self._not_before), self._ring)

    def _ring(self) -> None:
        self._timer, self._ringing = None, True
        now, queue = self._loop.time(), self._queue
        try:
            while queue and max(queue[0][0], self._not_before) <= now and self._passes():
                arrives, deliver, nbytes = queue.popleft()
                through = arrives if nbytes is None else self._through(arrives, nbytes)
                if through > now:
                    queue.appendleft((through, deliver, None))
                else:
                    deliver()
        finally:
            self._ringing = False
            self._arm()


class _Delayed:
    """A message under way, with a future that is done when the sender may reuse the memory.

    Args:
        room: bytes of the window that it takes; 0 if the message stays in the sender's memory until it is received.
    """

    __slots__ = ("arrives", "blocks", "carry", "free", "handing", "room")

    def __init__(self, arrives: float, blocks: Sequence[Block], carry: Carry, room: int):
        self.arrives, self.blocks, self.carry, self.room = arrives, blocks, carry, room
        self.free: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.handing: asyncio.Task[None] | None = None

    def settle(self, error: Exception | None = None) -> None:
        settle(self.free, error)

    def withdraw(self) -> None:
        """The sender was cancelled: the message arrives whole or not at all."""
        self.free.cancel()
        if self.handing is not None:
            self.handing.cancel()


class DelayedSender:
    """The messages to one peer over a slow link.

    Args:
        window: bytes of copied messages that may be under way or wait at the receiver's end.
        ahead: a send returns this many seconds before the message's last byte has left.
        failed: called with the error of a message that could not be delivered.
    """

    def __init__(self, link: SlowLink, window: float, ahead: float, failed: Callable[[TransportError], None]):
        self._link, self._window, self._ahead, self._failed = link, window, ahead, failed
        self._late = 0.0
        self._loop = asyncio.get_running_loop()
        self._flying: deque[_Delayed] = deque()
        self._walk: asyncio.Task[None] | None = None
        self._handing: set[asyncio.Task[None]] = set()

    async def post(self, sent: float, blocks: Sequence[Block], head_bytes: int, carry: Carry) -> None:
        """Send blocks; return when their memory may be reused.

        Args:
            sent: the time, on the loop's clock, at which the link gets the blocks.
            head_bytes: bytes of the header, which the link carries too.
            carry: sends the blocks, or a copy, by the inner transport.
        Raises:
            TransportError: an error of `carry` before this returns; or the error given to `fail`.
        """
        nbytes = sum(block.nbytes for block in blocks)
        passage = self._link.passage(sent, nbytes + head_bytes)
        delayed = self._delayed(passage.arrives, blocks, nbytes, carry)
        own = delayed.room or not nbytes
        leaving = self._loop.call_at(max(sent, passage.left - self._ahead), delayed.settle) if own else None
        try:
            await delayed.free
        except asyncio.CancelledError:
            delayed.withdraw()
            raise
        finally:
            if leaving is not None:
                leaving.cancel()

    async def landed(self) -> None:
        """Wait until no message is under way: all have been passed to the inner transport."""
        while self._walk is not None and not self._walk.done():
            await asyncio.wait([self._walk])
        await asyncio.sleep(0)  # let the last tasks that it created start

    async def ended(self) -> None:
        """Wait until all sends of the inner transport have ended."""
        while self._handing:
            await asyncio.wait(self._handing)

    def fail(self, error: TransportError) -> None:
        """Drop all messages under way, and fail their sends."""
        for delayed in self._flying:
            self._window += delayed.room
            delayed.settle(error)
        self._flying.clear()
        if self._walk is not None:
            self._walk.cancel()

    def _delayed(self, arrives: float, blocks: Sequence[Block], nbytes: int, carry: Carry) -> _Delayed:
        """Queue a message; copy it if it fits the window."""
        fits = nbytes <= self._window
        delayed = _Delayed(arrives, copied(blocks) if fits else blocks, carry, nbytes if fits else 0)
        self._window -= delayed.room
        self._flying.append(delayed)
        if self._walk is None or self._walk.done():
            self._walk = self._loop.create_task(self._carry_all())
        return delayed

    async def _carry_all(self) -> None:
        while self._flying:
            wait = self._flying[0].arrives - self._late - self._loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
                continue
            delayed = self._flying.popleft()
            delayed.handing = self._loop.create_task(self._hand_over(delayed))
            self._handing.add(delayed.handing)
            delayed.handing.add_done_callback(partial(self._over, delayed.room))

    def _learn(self, late: float) -> None:
        """Correct for lateness gradually; a difference within the clock's rounding is ignored."""
        if abs(late) > ROUNDING_S:
            self._late = min(max(0.0, self._late + LEARNT * late), LATEST_S)

    async def _hand_over(self, delayed: _Delayed) -> None:
        """Send the message by the inner transport, which may wait until its receive is posted.

        If the send need not wait, its duration (0.15 ms on a core that slept) counts as lateness too, twice: the
        receiver, which slept as long, takes about as long to receive.
        """
        began, waited = self._loop.time(), []
        turn = self._loop.call_soon(waited.append, True)
        try:
            if not delayed.free.cancelled():
                await delayed.carry(delayed.blocks)
            taken = 0.0 if waited else self._loop.time() - began
            self._learn(began + 2 * taken - delayed.arrives)
            delayed.settle()
        except TransportError as error:
            delayed.settle(error)
            self._failed(error)
        finally:
            turn.cancel()

    def _over(self, room: int, handing: asyncio.Task[None]) -> None:
        self._window += room
        self._handing.discard(handing)
