"""Cores on the virtual clock: if more ranks compute than there are cores, they share the cores evenly.

With n busy ranks on K cores each rank computes at min(1, K/n) of full speed at each moment, as under a fair operating
system. Source: processor sharing, Kleinrock (1967).
"""

import asyncio
import heapq
import math
from itertools import count

from pipelined.aio.clock import VirtualClock


class VirtualCores:
    """Cores that ranks share.

    `_work_done` is the work, in seconds at full speed, that a rank busy since the start would have got. All busy ranks
    get the same, so a piece of work ends when it reaches its value at the beginning plus the length of the piece.

    Args:
        cores: their number, or for teams the cores for each member; 0 for one per rank.
    """

    def __init__(self, cores: float):
        self._cores = cores or math.inf
        self._clock = VirtualClock()
        self._order = count()
        self._busy: list[tuple[float, int, asyncio.Future[None]]] = []
        self._work_done = self._updated_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, seconds: float) -> None:
        """Compute work of this many seconds at full speed; it takes longer if the cores are shared."""
        if math.isinf(self._cores):
            await self._clock.sleep(seconds)
            return
        self._advance()
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._busy, (self._work_done + seconds, next(self._order), future))
        self._set_timer()
        await future

    def _advance(self) -> None:
        """Add the work that each busy rank got since the last call."""
        now = self._clock.now()
        self._work_done += (now - self._updated_at) * self._speed
        self._updated_at = now

    def _set_timer(self) -> None:
        """Arm the timer for the end of the shortest piece of work; a rank that begins earlier re-arms it."""
        if self._timer:
            self._timer.cancel()
        if self._busy:
            seconds_left = max(0.0, self._busy[0][0] - self._work_done)
            self._timer = self._clock.call_at(self._clock.now() + seconds_left / self._speed, self._finish)

    def _finish(self) -> None:
        """End the shortest piece of work, and all others that end at the same time but for rounding."""
        self._advance()
        self._work_done = max(self._work_done, self._busy[0][0])
        while self._busy and (self._busy[0][0] <= self._work_done or math.isclose(self._busy[0][0], self._work_done)):
            heapq.heappop(self._busy)[2].set_result(None)
        self._set_timer()

    @property
    def _speed(self) -> float:
        return min(1.0, self._cores / len(self._busy)) if self._busy else 0.0
