"""One direction of an emulated network: messages arrive later, in order, or are held while the link is cut.

No message is dropped. `InFlightQueue` delivers them by a callback; each end shares its access line among all its
directions:

    up the sender's access line | the link: rate, delay ± jitter | down the receiver's access line
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from transports.emulation.link_timing import LinkTiming, Passage


class AccessLine:
    """One direction of a party's line to all others; it carries one message after another, in order of arrival.

    Args:
        rate: bytes a second.
    """

    __slots__ = ("_free_at", "rate")

    def __init__(self, rate: float):
        self.rate = rate
        self._free_at = -math.inf

    def transmit(self, first: float, last: float, nbytes: float) -> float:
        """The time when the last of these bytes has passed; they reach the line from `first` to `last`."""
        self._free_at = max(last, max(first, self._free_at) + nbytes / self.rate)
        return self._free_at


@dataclass(slots=True)
class _MessageInFlight:
    """A message in flight.

    Args:
        arrival: the time at which it has passed the link, or, once `down` is None, the receiver's line as well.
        down: the receiver's line if the message has still to pass it.
    """

    arrival: float
    nbytes: float
    deliver: Callable[[], None]
    down: AccessLine | None


class InFlightQueue:
    """The messages in flight from one end to the other.

    Args:
        link: computes when a message arrives.
        is_open: whether messages can arrive now; call `recheck` after its result changes. Default: always.
        up, down: the sender's line up and the receiver's line down; None: unlimited. A message on both takes the time
            of the slower line, not the sum; the time of the link's own rate is added.

    Attributes:
        lead_s: seconds by which delivery is started early, to compensate for measured lateness.
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
        link: LinkTiming,
        is_open: Callable[[], bool] = lambda: True,
        *,
        up: AccessLine | None = None,
        down: AccessLine | None = None,
    ):
        self._link = link
        self._is_open = is_open
        self._up = up
        self._down = down
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_MessageInFlight] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._not_before = 0.0
        self._delivering = False
        self.lead_s = 0.0

    def send(self, nbytes: float, deliver: Callable[[], None], sent: float | None = None) -> Passage:
        """Call `deliver` when this many bytes have arrived. Returns when the last byte has left, and when it arrives.

        Args:
            sent: the time at which the line gets the bytes; None: now.
        """
        now = self._loop.time() if sent is None else sent
        passage = self._link.passage(self._up.transmit(now, now, nbytes) if self._up else now, nbytes)
        self._queue.append(_MessageInFlight(passage.arrival, nbytes, deliver, self._down))
        if self._timer is None and not self._delivering:
            self._arm()
        return passage

    @property
    def is_moving(self) -> bool:
        """Whether any message is in flight, and not held."""
        return bool(self._queue) and self._is_open()

    def close(self) -> None:
        """Drop all messages in flight."""
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()

    def recheck(self, delay: float = 0.0) -> None:
        """Check again whether messages can pass; overdue messages arrive `delay` seconds from now."""
        self._not_before = self._loop.time() + delay
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._delivering:
            self._arm()

    def _passed_at(self, down: AccessLine, arrival: float, nbytes: float) -> float:
        """The time when bytes that arrive over the link have passed the receiver's line."""
        return down.transmit(arrival - nbytes / self._up.rate if self._up else arrival, arrival, nbytes)

    def _due_at(self) -> float:
        return max(self._queue[0].arrival - self.lead_s, self._not_before)

    def _arm(self) -> None:
        if self._queue and self._is_open():
            self._timer = self._loop.call_at(self._due_at(), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._delivering = True
        now = self._loop.time()
        queue = self._queue
        try:
            while queue and self._due_at() <= now and self._is_open():
                message = queue.popleft()
                if message.down is not None:
                    message.arrival = self._passed_at(message.down, message.arrival, message.nbytes)
                    message.down = None
                    if message.arrival > now:
                        queue.appendleft(message)
                        continue
                message.deliver()
        finally:
            self._delivering = False
            self._arm()
