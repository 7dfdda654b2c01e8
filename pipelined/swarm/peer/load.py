"""How much a peer has to do: what stages are balanced by, and peers moved.

A peer that was idle at times is as loaded as it was busy, a share of the time; one that never was, as loaded as the
least that waited at any time, for only what always waits could go elsewhere. The mean queue would not do: at half use
three quarters of a piece of work wait on average, and a stage that is half idle looks busy.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from pipelined.aio.clock import Clock


class Load:
    """Pieces of work asked for and not yet done.

    Attributes:
        waiting: how many there are now.
    """

    def __init__(self, clock: Clock):
        self._clock, self.waiting = clock, 0
        self._since = self._seen = clock.now()
        self._busy, self._least = 0.0, 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """One more waits for as long as the block runs."""
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)

    def take(self) -> float:
        """The load since this was asked last: a share of the time up to 1, or how many waited at the least."""
        self._change(0)
        passed = self._seen - self._since
        load = float(self._least) if self._least or passed <= 0 else self._busy / passed
        self._since, self._busy, self._least = self._seen, 0.0, self.waiting
        return load

    def told(self) -> dict[str, float]:
        """The present state, for whoever looks on."""
        return {"waiting": self.waiting}

    def _change(self, by: int) -> None:
        now = self._clock.now()
        self._busy += (now - self._seen) if self.waiting else 0.0
        self._seen, self.waiting = now, self.waiting + by
        self._least = min(self._least, self.waiting)
