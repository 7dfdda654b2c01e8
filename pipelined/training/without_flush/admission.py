"""How far a stretch without a flush has been let go: a step enters the pipe only when some step before it is settled.

So all ranks end at the same step when one is asked to stop, though none ever waits for all. The rule: what opens a step
is the same on every rank, for it is read off what all ranks summed together. Knows numbers of steps and nothing else.
"""

import asyncio


class Admission:
    """The steps of one stretch, counted from 0.

    Args:
        steps: how many there are at most.
        ahead: how many may be under way beyond those settled.

    Attributes:
        opened: steps that have been let in.
    """

    def __init__(self, steps: int, ahead: int):
        self._steps, self._ahead, self._changed = steps, ahead, asyncio.Event()
        self.opened, self._over = min(steps, ahead), steps <= ahead

    def settle(self, step: int, stop: bool) -> None:
        """Say that a step, the next in order, has been settled by all ranks, and whether any was asked to stop."""
        self._over = self._over or stop
        if not self._over:
            self.opened = min(self._steps, step + 1 + self._ahead)
            self._over = self.opened == self._steps
        self._changed.set()

    async def enters(self, step: int) -> bool:
        """Whether a step takes place; waits until that is known."""
        while step >= self.opened and not self._over:
            self._changed.clear()
            await self._changed.wait()
        return step < self.opened
