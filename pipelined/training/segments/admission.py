"""Admission of steps in a segment without a flush: a step enters the pipe only after an earlier step is agreed on.

All ranks agree on the sums of a step when it is complete. Admission depends only on these sums, which are equal on all
ranks. So all ranks end at the same step after a stop request, although no rank ever waits for all others.
"""

from pipelined.aio.nursery import Notifier


class StepAdmission:
    """The steps of one segment, counted from 0.

    Args:
        steps: the most steps of the segment.
        ahead: steps that may be under way beyond those that are agreed on.

    Attributes:
        opened: steps admitted so far.
    """

    def __init__(self, steps: int, ahead: int):
        self._steps, self._ahead, self._changed = steps, ahead, Notifier()
        self.opened, self._over = min(steps, ahead), steps <= ahead

    def record_agreed(self, step: int, stop: bool) -> None:
        """Record that all ranks have agreed on this step, the next in order; stop: any rank received a stop request."""
        self._over = self._over or stop
        if not self._over:
            self.opened = min(self._steps, step + 1 + self._ahead)
            self._over = self.opened == self._steps
        self._changed.notify_all()

    async def admits(self, step: int) -> bool:
        """Whether a step is admitted; waits until this is decided."""
        while step >= self.opened and not self._over:
            await self._changed.wait()
        return step < self.opened
