"""The terms of leases: when each lease expires. The caller passes the current time; no clock is read here."""

import heapq
import math
from dataclasses import dataclass


@dataclass(slots=True)
class Term:
    """The state of one lease.

    Args:
        seconds: from a renewal until it expires.
        end: time at which it expires unless it is renewed.
        item: time of its item in the heap, at most `end`.
        spared: whether it was extended by `Leases.spare` since the last renewal.
    """

    seconds: float
    end: float = math.inf
    item: float = math.inf
    spared: bool = False


class Leases:
    """All leases that have not ended.

    The heap has an item for each lease, at its end or earlier. An item that comes up too early is pushed back, so a
    renewal does not touch the heap.
    """

    def __init__(self) -> None:
        self._terms: dict[int, Term] = {}
        self._heap: list[tuple[float, int]] = []

    def __contains__(self, lease: int) -> bool:
        return lease in self._terms

    def __len__(self) -> int:
        return len(self._terms)

    def lengths(self) -> dict[int, float]:
        """The length of each lease in seconds."""
        return {lease: term.seconds for lease, term in self._terms.items()}

    def add(self, lease: int, seconds: float) -> None:
        """Add a lease; it cannot expire before its first renewal."""
        self._terms[lease] = Term(seconds)

    def remove(self, lease: int) -> None:
        """Remove a lease; `due` skips its items in the heap."""
        del self._terms[lease]

    def renew(self, lease: int, now: float) -> float:
        """Start the time of a lease again; returns its length in seconds."""
        term = self._terms[lease]
        term.end, term.spared = now + term.seconds, False
        self._queue(lease)
        return term.seconds

    def hurry(self, lease: int, end: float) -> None:
        """Let a lease expire at `end` at the latest, unless it is renewed before."""
        term = self._terms.get(lease)
        if term and end < term.end:
            term.end = end
            self._queue(lease)

    def due(self) -> float | None:
        """The time at which the next lease expires; None: no lease has an end."""
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
        """Remove the leases that have expired, and return them, earliest end first."""
        gone = []
        while (due := self.due()) is not None and due <= now:
            gone.append(self._heap[0][1])
            self.remove(gone[-1])
        return gone

    def spare(self, now: float) -> None:
        """Extend the leases that expired while this process did not run and received no renewal.

        Each gets as much time as has passed since its end, at most its length, and only once between two renewals.
        """
        for lease, term in self._terms.items():
            if term.end <= now and not term.spared:
                term.spared, term.end = True, now + min(now - term.end, term.seconds)
                self._queue(lease)

    def _queue(self, lease: int) -> None:
        term = self._terms[lease]
        if term.end < term.item:
            term.item = term.end
            heapq.heappush(self._heap, (term.end, lease))
