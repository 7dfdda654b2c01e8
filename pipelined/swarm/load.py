"""How much work waits at a peer, on average over time: what stages are balanced by."""

from collections.abc import Iterator
from contextlib import contextmanager

from pipelined.clock import Clock


class Load:
    """Pieces of work asked for and not yet done, and their mean since they were last told."""

    def __init__(self, clock: Clock):
        self._clock, self.waiting = clock, 0
        self._since = self._seen = clock.now()
        self._area = 0.0

    @contextmanager
    def one(self) -> Iterator[None]:
        """One more waits for as long as the block runs."""
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)

    def take(self) -> float:
        """The mean since the last time this was asked."""
        self._change(0)
        passed = self._seen - self._since
        mean = self._area / passed if passed > 0 else float(self.waiting)
        self._since, self._area = self._seen, 0.0
        return mean

    def told(self) -> dict[str, float]:
        """The present state, for whoever looks on."""
        return {"waiting": self.waiting}

    def _change(self, by: int) -> None:
        now = self._clock.now()
        self._area += self.waiting * (now - self._seen)
        self._seen, self.waiting = now, self.waiting + by
