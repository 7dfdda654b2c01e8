"""Staying awake for a moment: before the loop of a rank that waits goes to sleep, it looks a few times more.

To fall asleep in the kernel and to be woken takes some 25 µs for each message, which is half of what a short one takes
otherwise. The one rule: nobody else's time is spent, so not while this rank computes, nor where ranks outnumber cores.
Knows the loop alone; what is looked for is whatever the loop watches.
"""

import asyncio
import os

MOMENT_S = 200e-6  # a short answer is there by then, if whoever sends it does nothing else first


class Vigil:
    """One rank's readiness to look again.

    Args:
        roomy: whether every rank of this machine has a core.
    """

    def __init__(self, roomy: bool):
        self._loop = asyncio.get_running_loop()
        self._moment = MOMENT_S if roomy else 0.0
        self._computing = self._looking = False
        self._until = 0.0

    def keep(self) -> None:
        """Somebody begins to wait: from now on keep the loop awake for a moment."""
        if not self._moment or self._computing:
            return
        self._until = self._loop.time() + self._moment
        if not self._looking:
            self._looking = True
            self._loop.call_soon(self._look)

    def computing(self, busy: bool) -> None:
        """Whether this rank computes; if so, the loop may sleep at once."""
        self._computing = busy

    def _look(self) -> None:
        """Let the loop have its turn, in which it looks at all that it watches, and come back."""
        self._looking = not self._computing and self._loop.time() < self._until
        if self._looking:
            os.sched_yield()
            self._loop.call_soon(self._look)
