"""Cores on the virtual clock: ranks that compute share them evenly where there are more of them than cores.

The rule: with n busy ranks on K cores each computes at min(1, K/n) of full speed, whatever n becomes meanwhile, as a
fair operating system would have it. Source: processor sharing, Kleinrock (1967).
"""

import asyncio
import heapq
import math
from itertools import count

from pipelined.aio.clock import VirtualClock


class VirtualCores:
    """A number of cores.

    Args:
        number: 0 for one each.

    The work done for one rank since the start is the same for all that were busy all the time, so each piece of work
    ends when that amount reaches what it was at its beginning plus its own.
    """

    def __init__(self, number: int):
        self._number, self._clock, self._order = number or math.inf, VirtualClock(), count()
        self._busy: list[tuple[float, int, asyncio.Future[None]]] = []
        self._done = self._asked = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, seconds: float) -> None:
        """Compute for so long at full speed, and longer where cores are short."""
        if math.isinf(self._number):
            await self._clock.sleep(seconds)
            return
        self._advance()
        finished = asyncio.get_running_loop().create_future()
        heapq.heappush(self._busy, (self._done + seconds, next(self._order), finished))
        self._set_timer()
        await finished

    def _advance(self) -> None:
        """Add up what has been done for each busy rank until now."""
        now = self._clock.now()
        self._done += (now - self._asked) * self._speed
        self._asked = now

    def _set_timer(self) -> None:
        """Wake up when the first of the busy ranks is done, if no other begins before."""
        if self._timer:
            self._timer.cancel()
        if self._busy:
            left = max(0.0, self._busy[0][0] - self._done)
            self._timer = self._clock.call_at(self._clock.now() + left / self._speed, self._finish)

    def _finish(self) -> None:
        """The first is done; so are those that differ from it by rounding alone."""
        self._advance()
        self._done = max(self._done, self._busy[0][0])
        while self._busy and (self._busy[0][0] <= self._done or math.isclose(self._busy[0][0], self._done)):
            heapq.heappop(self._busy)[2].set_result(None)
        self._set_timer()

    @property
    def _speed(self) -> float:
        return min(1.0, self._number / len(self._busy)) if self._busy else 0.0
