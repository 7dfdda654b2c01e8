"""One direction of an emulated network: a frame arrives later, in order, or waits while it cannot pass.

No frame is lost on the way; the receiver decides at its arrival whether it still means anything. The access lines of
the two ends are shared with all other directions from and to them:

    up the sender's access line | the link: rate, delay ± jitter | down the receiver's access line
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable

from transports.emulation.link import SlowLink


class AccessLine:
    """One direction of what a party reaches all others by: it carries one message after another, as they come.

    Args:
        rate: bytes a second.
    """

    __slots__ = ("_free", "rate")

    def __init__(self, rate: float):
        self.rate, self._free = rate, -math.inf

    def carry(self, first: float, last: float, nbytes: float) -> float:
        """When the last of these bytes is through; the moments are those at which the first and the last come to it."""
        self._free = max(last, max(first, self._free) + nbytes / self.rate)
        return self._free


class DelayLine:
    """What is under way from one end to the other.

    Args:
        link: says when it arrives.
        passes: whether anything can arrive now; whoever changes that calls `go_on`. Always, if left out.
        lines: up from the sender and down to the receiver; None: as wide as need be. What goes up one and down the
            other takes the time of the slower, not of both; what the link's own rate takes comes on top.
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
        """Have `deliver` called when this many bytes have arrived; returns the moment when the last one has left."""
        now = self._loop.time()
        passage = self._link.passage(self._up.carry(now, now, nbytes) if self._up else now, nbytes)
        self._queue.append((passage.arrives, deliver, nbytes if self._down else None))
        if self._timer is None and not self._ringing:
            self._arm()
        return passage.left

    def close(self) -> None:
        """Nothing arrives any more."""
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()

    def go_on(self, after: float = 0.0) -> None:
        """Look again whether anything passes; what is late already arrives so many seconds from now."""
        self._not_before = self._loop.time() + after
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._ringing:
            self._arm()

    def _through(self, arrives: float, nbytes: float) -> float:
        """When what has come over the link is down the receiver's line."""
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
