"""The load of a peer, by which the leader balances the stages.

The load of a peer that was idle at times is the share of time that it was busy. The load of a peer that was never idle
is the smallest number of pieces of work that waited, because only work that always waits could go to another peer. The
mean queue is not usable: at half use, three quarters of a piece of work wait on average, so a half-idle stage would
look busy.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from pipelined.aio.clock import Clock


class Load:
    """Pieces of work requested and not yet done.

    Attributes:
        waiting: how many there are now.
    """

    def __init__(self, clock: Clock):
        self._clock, self.waiting = clock, 0
        self._since = self._seen = clock.now()
        self._busy_s, self._least = 0.0, 0

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Count one more piece of work while the block runs."""
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)

    def read_and_reset(self) -> float:
        """The load since the last call: up to 1 the share of busy time, else the smallest number of waiting pieces."""
        self._change(0)
        passed = self._seen - self._since
        load = float(self._least) if self._least or passed <= 0 else self._busy_s / passed
        self._since, self._busy_s, self._least = self._seen, 0.0, self.waiting
        return load

    def status(self) -> dict[str, float]:
        """The present state, for status."""
        return {"waiting": self.waiting}

    def _change(self, by: int) -> None:
        now = self._clock.now()
        self._busy_s += (now - self._seen) if self.waiting else 0.0
        self._seen, self.waiting = now, self.waiting + by
        self._least = min(self._least, self.waiting)
