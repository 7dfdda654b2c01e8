"""One timer for all the calls of a group: it rings for a call that is still under way when its patience is over.

The one rule: a call that ends in time neither sets a timer nor cancels one, unless the last one has run out. A timer
for each would cost a short call 2 microseconds, and leave the loop a heap of cancelled ones. Knows nothing of calls.
"""

import asyncio
from collections.abc import Callable


class Alarm:
    """Watches over one thing at a time.

    Args:
        patience: seconds from `begin` on after which it rings, unless `end` came first.
    """

    __slots__ = ("_due", "_loop", "_patience", "_ring")

    def __init__(self, patience: float):
        self._patience, self._due = patience, 0.0
        self._ring: Callable[[], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, ring: Callable[[], None]) -> None:
        """Call `ring` once, from the running loop, when the patience is over."""
        loop = asyncio.get_running_loop()
        self._ring, self._due = ring, loop.time() + self._patience
        if self._loop is not loop:
            self._set(loop)

    def end(self) -> None:
        """Do not ring any more."""
        self._ring = None

    def _set(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        loop.call_at(self._due, self._look)

    def _look(self) -> None:
        loop, self._loop = self._loop, None
        if self._ring is None:
            return
        if loop.time() < self._due:
            return self._set(loop)
        ring, self._ring = self._ring, None
        ring()
