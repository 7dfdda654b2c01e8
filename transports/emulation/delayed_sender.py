"""A queue of messages in flight before the `send` of a transport.

A send returns when the link has accepted the message, as on a socket with room in its buffer; or, beyond the window,
when the receiver has it. On a real machine timers fire late, and sending takes time: `DelayedSender` measures both, and
lets its queue deliver that much earlier.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from transports.aio.futures import resolve
from transports.emulation.in_flight_queue import InFlightQueue
from transports.emulation.link_timing import LinkTiming
from transports.errors import TransportError
from transports.wire.arrays import Block, copied

ROUNDING_S = 1e-6
MAX_LATENESS_S = 1e-3  # ignore lateness beyond this: it has another cause
GAIN = 1 / 4  # the share of one message's lateness that the correction takes over

ForwardBlocks = Callable[[Sequence[Block]], Awaitable[None]]


class _Delayed:
    """A message in flight, with a future that is done when the sender may reuse the memory.

    Args:
        window_bytes: what it takes of the window; 0 if it stays in the sender's memory until it is received.
    """

    __slots__ = ("blocks", "forward", "forwarding", "reusable", "window_bytes")

    def __init__(self, blocks: Sequence[Block], forward: ForwardBlocks, window_bytes: int):
        self.blocks, self.forward, self.window_bytes = blocks, forward, window_bytes
        self.reusable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.forwarding: asyncio.Task[None] | None = None

    def resolve(self, error: Exception | None = None) -> None:
        resolve(self.reusable, error)

    def withdraw(self) -> None:
        """The sender was cancelled: the message arrives whole or not at all."""
        self.reusable.cancel()
        if self.forwarding is not None:
            self.forwarding.cancel()


class DelayedSender:
    """The messages to one peer over a slow link.

    Args:
        window: bytes of copied messages that may be in flight or wait at the receiver's end.
        ahead: a send returns this many seconds before the message's last byte has left.
        on_failure: called with the error of a message that could not be delivered.
    """

    def __init__(self, link: LinkTiming, window: float, ahead: float, on_failure: Callable[[TransportError], None]):
        self._queue = InFlightQueue(link)
        self._window = window
        self._ahead = ahead
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._in_flight: dict[_Delayed, None] = {}
        self._drained = asyncio.Event()
        self._drained.set()
        self._forwarding: set[asyncio.Task[None]] = set()

    async def send(self, sent: float, blocks: Sequence[Block], head_bytes: int, forward: ForwardBlocks) -> None:
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
        passage = self._queue.send(nbytes + head_bytes, lambda: self._arrive(delayed, passage.arrival), sent)
        leaving = self._loop.call_at(max(sent, passage.departure - self._ahead), delayed.resolve) if fits else None
        try:
            await delayed.reusable
        except asyncio.CancelledError:
            delayed.withdraw()
            raise
        finally:
            if leaving is not None:
                leaving.cancel()

    @property
    def is_moving(self) -> bool:
        """See `InFlightQueue.is_moving`."""
        return self._queue.is_moving

    async def wait_drained(self) -> None:
        """Wait until no message is in flight: all have been passed to the inner transport."""
        await self._drained.wait()
        await asyncio.sleep(0)  # let the last tasks that it created start

    async def wait_ended(self) -> None:
        """Wait until all sends of the inner transport have ended."""
        while self._forwarding:
            await asyncio.wait(self._forwarding)

    def fail(self, error: TransportError) -> None:
        """Drop all messages in flight, and fail their sends."""
        self._queue.close()
        for delayed in list(self._in_flight):
            self._window += delayed.window_bytes
            delayed.resolve(error)
            self._remove(delayed)

    def _remove(self, delayed: _Delayed) -> None:
        del self._in_flight[delayed]
        if not self._in_flight:
            self._drained.set()

    def _arrive(self, delayed: _Delayed, due_at: float) -> None:
        delayed.forwarding = self._loop.create_task(self._forward(delayed, due_at))
        self._forwarding.add(delayed.forwarding)
        delayed.forwarding.add_done_callback(partial(self._on_done, delayed.window_bytes))
        self._remove(delayed)

    async def _forward(self, delayed: _Delayed, due_at: float) -> None:
        """Send the message by the inner transport, which may wait until its receive is posted.

        If the send need not wait, its duration (0.15 ms on a core that slept) counts as lateness too, twice: the
        receiver, which slept as long, takes about as long to receive.
        """
        start = self._loop.time()
        turns = list[bool]()
        turn = self._loop.call_soon(turns.append, True)
        try:
            if not delayed.reusable.cancelled():
                await delayed.forward(delayed.blocks)
            duration_s = 0.0 if turns else self._loop.time() - start
            self._adjust(start + 2 * duration_s - due_at)
            delayed.resolve()
        except TransportError as error:
            delayed.resolve(error)
            self._on_failure(error)
        finally:
            turn.cancel()

    def _adjust(self, lateness: float) -> None:
        """Correct for lateness gradually; a difference within the clock's rounding is ignored."""
        if abs(lateness) > ROUNDING_S:
            self._queue.lead_s = min(max(0.0, self._queue.lead_s + GAIN * lateness), MAX_LATENESS_S)

    def _on_done(self, window_bytes: int, forwarding: asyncio.Task[None]) -> None:
        self._window += window_bytes
        self._forwarding.discard(forwarding)
