"""An executor that waits instead of computing: emulated on the real clock, virtual on the virtual clock."""

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import TypeVar

from pipelined.actors.device.executor import OPS_IN_ERRORS, Executor
from pipelined.aio.clock import Clock

T = TypeVar("T")


class TimedExecutor(Executor):
    """Waits for the duration of each kind of work: two cores can run 64 such "GPUs", a virtual clock 2,048.

    Queued work begins when the work before it should have ended, so that late timers of the real clock do not add up.

    Args:
        seconds: duration of each op; other ops take no time.
        work_first: do the work at the beginning of its duration, so that on the real clock what the work itself takes
            is part of the duration; else at the end, and it takes longer by that.
    """

    def __init__(
        self,
        seconds: Mapping[str, float],
        clock: Clock,
        on_busy: Callable[[bool], None] = lambda busy: None,
        *,
        work_first: bool = False,
    ):
        super().__init__(clock, on_busy)
        self.seconds, self._turn, self._end, self._work_first = seconds, asyncio.Lock(), -math.inf, work_first

    async def run(self, op: str, work: Callable[[], T], report_at_once: bool = True) -> tuple[T, float, float]:
        """See `Executor.run`."""
        queued = self.clock.now()
        self._count_queued()
        try:
            async with self._turn:
                start, seconds = max(queued, self._end), self.seconds.get(op, 0.0)
                self._end = start + seconds
                try:
                    if self._work_first:
                        result = self._done(op, work)
                    await self._compute(op, seconds - (self.clock.now() - start))
                    if not self._work_first:
                        result = self._done(op, work)
                except BaseException:
                    self._end = self.clock.now()
                    raise
        finally:
            self._count_ended()
        self._record(op, self._end - start)
        return result, start, self._end

    def _done(self, op: str, work: Callable[[], T]) -> T:
        with self.doing(OPS_IN_ERRORS.get(op, op)):
            return work()

    async def _compute(self, op: str, seconds: float) -> None:
        """Let the seconds pass that a piece of work still takes."""
        await self.clock.sleep(max(0.0, seconds))
