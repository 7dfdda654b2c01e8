"""The expiry of each lease of a directory. The caller passes the current time; no clock is read here."""

import heapq
import math
from dataclasses import dataclass


@dataclass(slots=True)
class LeaseState:
    """The state of one lease.

    Args:
        seconds: from a renewal until it expires.
        end: time at which it expires unless it is renewed.
        item: time of its item in the heap, at most `end`.
        extended: whether it was extended by `Leases.extend_after_pause` since the last renewal.
    """

    seconds: float
    end: float = math.inf
    item: float = math.inf
    extended: bool = False


class Leases:
    """All leases that have not ended.

    The heap has an item for each lease, at its end or earlier. An item that comes up too early is pushed back, so a
    renewal does not touch the heap.
    """

    def __init__(self) -> None:
        self._states: dict[int, LeaseState] = {}
        self._heap: list[tuple[float, int]] = []

    def __contains__(self, lease: int) -> bool:
        return lease in self._states

    def __len__(self) -> int:
        return len(self._states)

    def lengths(self) -> dict[int, float]:
        """The length of each lease in seconds."""
        return {lease: state.seconds for lease, state in self._states.items()}

    def add(self, lease: int, seconds: float) -> None:
        """Add a lease; it cannot expire before its first renewal."""
        self._states[lease] = LeaseState(seconds)

    def remove(self, lease: int) -> None:
        """Remove a lease; `due` skips its items in the heap."""
        del self._states[lease]

    def renew(self, lease: int, now: float) -> float:
        """Start the time of a lease again; returns its length in seconds."""
        state = self._states[lease]
        state.end, state.extended = now + state.seconds, False
        self._queue(lease)
        return state.seconds

    def shorten(self, lease: int, end: float) -> None:
        """Let a lease expire at `end` at the latest, unless it is renewed before."""
        state = self._states.get(lease)
        if state and end < state.end:
            state.end = end
            self._queue(lease)

    def due(self) -> float | None:
        """The time at which the next lease expires; None: no lease has an end."""
        while self._heap:
            moment, lease = self._heap[0]
            state = self._states.get(lease)
            if state and state.item == state.end == moment:
                return moment
            heapq.heappop(self._heap)
            if state and state.item == moment:
                state.item = math.inf
                self._queue(lease)
        return None

    def expire(self, now: float) -> list[int]:
        """Remove the leases that have expired, and return them, earliest end first."""
        gone = []
        while (due := self.due()) is not None and due <= now:
            gone.append(self._heap[0][1])
            self.remove(gone[-1])
        return gone

    def extend_after_pause(self, now: float) -> None:
        """Extend the leases that expired while this process did not run and received no renewal.

        Each gets as much time as has passed since its end, at most its length, and only once between two renewals.
        """
        for lease, state in self._states.items():
            if state.end <= now and not state.extended:
                state.extended, state.end = True, now + min(now - state.end, state.seconds)
                self._queue(lease)

    def _queue(self, lease: int) -> None:
        state = self._states[lease]
        if state.end < state.item:
            state.item = state.end
            heapq.heappush(self._heap, (state.end, lease))
