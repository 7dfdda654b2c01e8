"""One direction of a slow network: what is sent arrives later, in order, or waits while it cannot.

The one rule: nothing is lost on the way; whether it still means anything is asked at its arrival. Knows the running
loop's time and a slow link's arithmetic.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from transports._slow_link import SlowLink


class Way:
    """What is under way from one end to the other.

    Args:
        link: says when it arrives.
        passes: whether anything can arrive now; whoever changes that calls `go_on`. Always, if left out.
    """

    __slots__ = ("_link", "_loop", "_not_before", "_passes", "_queue", "_ringing", "_timer")

    def __init__(self, link: SlowLink, passes: Callable[[], bool] = lambda: True):
        self._link, self._passes = link, passes
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[float, Callable[[], None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._not_before, self._ringing = 0.0, False

    def send(self, nbytes: int, deliver: Callable[[], None]) -> float:
        """Have `deliver` called when this many bytes have arrived; returns the moment when the last one has left."""
        passage = self._link.passage(self._loop.time(), nbytes)
        self._queue.append((passage.arrives, deliver))
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

    def _arm(self) -> None:
        if self._queue and self._passes():
            self._timer = self._loop.call_at(max(self._queue[0][0], self._not_before), self._ring)

    def _ring(self) -> None:
        self._timer, self._ringing = None, True
        now, queue = self._loop.time(), self._queue
        try:
            while queue and max(queue[0][0], self._not_before) <= now and self._passes():
                queue.popleft()[1]()
        finally:
            self._ringing = False
            self._arm()
