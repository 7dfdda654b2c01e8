"""One direction of an emulated network: messages arrive later, in order, or are held while the link is cut.

No message is dropped. `DelayLine` delivers frames by a callback; each end shares its access line among all its
directions:

    up the sender's access line | the link: rate, delay ± jitter | down the receiver's access line

`DelayedSender` puts one before the `send` of a transport. A send returns when the link has accepted the message, as on
a socket with room in its buffer; or, beyond the window, when the receiver has it. On a real machine timers fire late,
and sending takes time: `DelayedSender` measures both, and lets its line deliver that much earlier.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from transports.aio.event_loop import resolve
from transports.emulation.link import Passage, SlowLink
from transports.errors import TransportError
from transports.wire.arrays import Block, copied

ROUNDING_S = 1e-6
MAX_LATENESS_S = 1e-3  # ignore lateness beyond this: it has another cause
GAIN = 1 / 4  # the share of one message's lateness that the correction takes over

Forward = Callable[[Sequence[Block]], Awaitable[None]]


class AccessLine:
    """One direction of a party's line to all others; it carries one message after another, in order of arrival.

    Args:
        rate: bytes a second.
    """

    __slots__ = ("_free", "rate")

    def __init__(self, rate: float):
        self.rate, self._free = rate, -math.inf

    def transmit(self, first: float, last: float, nbytes: float) -> float:
        """The time when the last of these bytes has passed; they reach the line from `first` to `last`."""
        self._free = max(last, max(first, self._free) + nbytes / self.rate)
        return self._free


class DelayLine:
    """The messages in flight from one end to the other.

    Args:
        link: computes when a message arrives.
        is_open: whether messages can arrive now; call `recheck` after its result changes. Default: always.
        up, down: the sender's line up and the receiver's line down; None: unlimited. A message on both takes the time
            of the slower line, not the sum; the time of the link's own rate is added.

    Attributes:
        lead_s: seconds before its arrival at which a message is delivered, in advance of what is known to be late.
    """

    __slots__ = (
        "_delivering",
        "_down",
        "_is_open",
        "_link",
        "_loop",
        "_not_before",
        "_queue",
        "_timer",
        "_up",
        "lead_s",
    )

    def __init__(
        self,
        link: SlowLink,
        is_open: Callable[[], bool] = lambda: True,
        *,
        up: AccessLine | None = None,
        down: AccessLine | None = None,
    ):
        self._link, self._is_open, self._up, self._down = link, is_open, up, down
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[float, Callable[[], None], float | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._not_before, self._delivering, self.lead_s = 0.0, False, 0.0

    def send(self, nbytes: float, deliver: Callable[[], None], sent: float | None = None) -> Passage:
        """Call `deliver` when this many bytes have arrived. Returns when the last byte has left, and when it arrives.

        Args:
            sent: the time at which the line gets the bytes; None: now.
        """
        now = self._loop.time() if sent is None else sent
        passage = self._link.passage(self._up.transmit(now, now, nbytes) if self._up else now, nbytes)
        self._queue.append((passage.arrival, deliver, nbytes if self._down else None))
        if self._timer is None and not self._delivering:
            self._arm()
        return passage

    def close(self) -> None:
        """Drop all messages in flight."""
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()

    def recheck(self, after: float = 0.0) -> None:
        """Check again whether messages can pass; overdue messages arrive `after` seconds from now."""
        self._not_before = self._loop.time() + after
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._delivering:
            self._arm()

    def _passed_at(self, down: AccessLine, arrival: float, nbytes: float) -> float:
        """The time when bytes that arrive over the link have passed the receiver's line."""
        return down.transmit(arrival - nbytes / self._up.rate if self._up else arrival, arrival, nbytes)

    def _due(self) -> float:
        return max(self._queue[0][0] - self.lead_s, self._not_before)

    def _arm(self) -> None:
        if self._queue and self._is_open():
            self._timer = self._loop.call_at(self._due(), self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._delivering = None, True
        now, queue = self._loop.time(), self._queue
        try:
            while queue and self._due() <= now and self._is_open():
                arrival, deliver, nbytes = queue.popleft()
                passed = arrival if nbytes is None or not self._down else self._passed_at(self._down, arrival, nbytes)
                if nbytes is not None and passed > now:
                    queue.appendleft((passed, deliver, None))
                else:
                    deliver()
        finally:
            self._delivering = False
            self._arm()


class _Delayed:
    """A message in flight, with a future that is done when the sender may reuse the memory.

    Args:
        window_bytes: what it takes of the window; 0 if it stays in the sender's memory until it is received.
    """

    __slots__ = ("blocks", "forward", "forwarding", "free", "window_bytes")

    def __init__(self, blocks: Sequence[Block], forward: Forward, window_bytes: int):
        self.blocks, self.forward, self.window_bytes = blocks, forward, window_bytes
        self.free: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.forwarding: asyncio.Task[None] | None = None

    def resolve(self, error: Exception | None = None) -> None:
        resolve(self.free, error)

    def withdraw(self) -> None:
        """The sender was cancelled: the message arrives whole or not at all."""
        self.free.cancel()
        if self.forwarding is not None:
            self.forwarding.cancel()


class DelayedSender:
    """The messages to one peer over a slow link.

    Args:
        window: bytes of copied messages that may be in flight or wait at the receiver's end.
        ahead: a send returns this many seconds before the message's last byte has left.
        failed: called with the error of a message that could not be delivered.
    """

    def __init__(self, link: SlowLink, window: float, ahead: float, failed: Callable[[TransportError], None]):
        self._line, self._window, self._ahead, self._failed = DelayLine(link), window, ahead, failed
        self._loop = asyncio.get_running_loop()
        self._in_flight: dict[_Delayed, None] = {}
        self._drained = asyncio.Event()
        self._drained.set()
        self._forwarding: set[asyncio.Task[None]] = set()

    async def post(self, sent: float, blocks: Sequence[Block], head_bytes: int, forward: Forward) -> None:
        """Send blocks; return when their memory may be reused.

        Args:
            sent: the time, on the loop's clock, at which the link gets the blocks.
            head_bytes: bytes of the header, which the link carries too.
            forward: sends the blocks, or a copy, by the inner transport.
        Raises:
            TransportError: an error of `forward` before this returns; or the error given to `fail`.
        """
        nbytes = sum(block.nbytes for block in blocks)
        fits = nbytes <= self._window
        delayed = _Delayed(copied(blocks) if fits else blocks, forward, nbytes if fits else 0)
        self._window -= delayed.window_bytes
        self._in_flight[delayed] = None
        self._drained.clear()
        passage = self._line.send(nbytes + head_bytes, lambda: self._arrive(delayed, passage.arrival), sent)
        leaving = self._loop.call_at(max(sent, passage.departure - self._ahead), delayed.resolve) if fits else None
        try:
            await delayed.free
        except asyncio.CancelledError:
            delayed.withdraw()
            raise
        finally:
            if leaving is not None:
                leaving.cancel()

    async def drained(self) -> None:
        """Wait until no message is in flight: all have been passed to the inner transport."""
        await self._drained.wait()
        await asyncio.sleep(0)  # let the last tasks that it created start

    async def ended(self) -> None:
        """Wait until all sends of the inner transport have ended."""
        while self._forwarding:
            await asyncio.wait(self._forwarding)

    def fail(self, error: TransportError) -> None:
        """Drop all messages in flight, and fail their sends."""
        self._line.close()
        for delayed in list(self._in_flight):
            self._window += delayed.window_bytes
            delayed.resolve(error)
            self._remove(delayed)

    def _remove(self, delayed: _Delayed) -> None:
        del self._in_flight[delayed]
        if not self._in_flight:
            self._drained.set()

    def _arrive(self, delayed: _Delayed, due: float) -> None:
        delayed.forwarding = self._loop.create_task(self._forward(delayed, due))
        self._forwarding.add(delayed.forwarding)
        delayed.forwarding.add_done_callback(partial(self._on_done, delayed.window_bytes))
        self._remove(delayed)

    async def _forward(self, delayed: _Delayed, due: float) -> None:
        """Send the message by the inner transport, which may wait until its receive is posted.

        If the send need not wait, its duration (0.15 ms on a core that slept) counts as lateness too, twice: the
        receiver, which slept as long, takes about as long to receive.
        """
        began, waited = self._loop.time(), list[bool]()
        turn = self._loop.call_soon(waited.append, True)
        try:
            if not delayed.free.cancelled():
                await delayed.forward(delayed.blocks)
            taken = 0.0 if waited else self._loop.time() - began
            self._adjust(began + 2 * taken - due)
            delayed.resolve()
        except TransportError as error:
            delayed.resolve(error)
            self._failed(error)
        finally:
            turn.cancel()

    def _adjust(self, late: float) -> None:
        """Correct for lateness gradually; a difference within the clock's rounding is ignored."""
        if abs(late) > ROUNDING_S:
            self._line.lead_s = min(max(0.0, self._line.lead_s + GAIN * late), MAX_LATENESS_S)

    def _on_done(self, window_bytes: int, forwarding: asyncio.Task[None]) -> None:
        self._window += window_bytes
        self._forwarding.discard(forwarding)
