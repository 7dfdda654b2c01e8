"""When leases run out. The rule: time is what the caller says it is, and only differences between moments count.

Knows moments alone; it must not know keys.
"""

import heapq
import math
from dataclasses import dataclass


@dataclass(slots=True)
class Term:
    """How a lease stands.

    Args:
        seconds: how long it lives after a renewal.
        end: the moment it runs out, if nobody renews it.
        item: the moment it has in the heap, at its end or before.
        spared: whether it has been given more time since the last renewal.
    """

    seconds: float
    end: float = math.inf
    item: float = math.inf
    spared: bool = False


class Leases:
    """All leases that live.

    Each has an item in a heap at its end or before; one that comes up too early goes back, so a renewal costs nothing.
    """

    def __init__(self) -> None:
        self._terms: dict[int, Term] = {}
        self._heap: list[tuple[float, int]] = []

    def __contains__(self, lease: int) -> bool:
        return lease in self._terms

    def __len__(self) -> int:
        return len(self._terms)

    def lengths(self) -> dict[int, float]:
        """The seconds of each lease."""
        return {lease: term.seconds for lease, term in self._terms.items()}

    def add(self, lease: int, seconds: float) -> None:
        """A lease that does not run out before it has been renewed once."""
        self._terms[lease] = Term(seconds)

    def remove(self, lease: int) -> None:
        """It is gone; what the heap has of it is passed over."""
        del self._terms[lease]

    def renew(self, lease: int, now: float) -> float:
        """It lives its whole time again, which is returned."""
        term = self._terms[lease]
        term.end, term.spared = now + term.seconds, False
        self._queue(lease)
        return term.seconds

    def hurry(self, lease: int, end: float) -> None:
        """It runs out at this moment at the latest."""
        term = self._terms.get(lease)
        if term and end < term.end:
            term.end = end
            self._queue(lease)

    def due(self) -> float | None:
        """When the first one runs out."""
        while self._heap:
            moment, lease = self._heap[0]
            term = self._terms.get(lease)
            if term and term.item == term.end == moment:
                return moment
            heapq.heappop(self._heap)
            if term and term.item == moment:
                term.item = math.inf
                self._queue(lease)
        return None

    def run_out(self, now: float) -> list[int]:
        """Remove those whose end has come, the first to end first."""
        gone = []
        while (due := self.due()) is not None and due <= now:
            gone.append(self._heap[0][1])
            self.remove(gone[-1])
        return gone

    def spare(self, now: float) -> None:
        """For a while up to now nobody was listened to: what ran out meanwhile lives on for as long again, but once."""
        for lease, term in self._terms.items():
            if term.end <= now and not term.spared:
                term.spared, term.end = True, now + min(now - term.end, term.seconds)
                self._queue(lease)

    def _queue(self, lease: int) -> None:
        term = self._terms[lease]
        if term.end < term.item:
            term.item = term.end
            heapq.heappush(self._heap, (term.end, lease))
