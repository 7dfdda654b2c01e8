"""The leases of a directory: when each expires. The caller passes the current time; no clock is read here."""

import heapq
import math
from dataclasses import dataclass


@dataclass(slots=True)
class LeaseState:
    """The state of one lease.

    Args:
        seconds: from a renewal until it expires.
        expiry: time at which it expires unless it is renewed.
        queued: time of its item in the heap, at most `expiry`.
        extended: whether it was extended by `Leases.extend_after_pause` since the last renewal.
    """

    seconds: float
    expiry: float = math.inf
    queued: float = math.inf
    extended: bool = False


class Leases:
    """All leases that have not ended.

    The heap has an item for each lease, at its expiry or earlier. An item that comes up too early is pushed back, so a
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
        """Remove a lease; `next_expiry` skips its items in the heap."""
        del self._states[lease]

    def renew(self, lease: int, now: float) -> float:
        """Start the time of a lease again; returns its length in seconds."""
        state = self._states[lease]
        state.expiry = now + state.seconds
        state.extended = False
        self._queue(lease)
        return state.seconds

    def shorten(self, lease: int, expiry: float) -> None:
        """Let a lease expire at `expiry` at the latest, unless it is renewed before."""
        state = self._states.get(lease)
        if state and expiry < state.expiry:
            state.expiry = expiry
            self._queue(lease)

    def next_expiry(self) -> float | None:
        """The time at which the next lease expires; None: no lease has one."""
        while self._heap:
            moment, lease = self._heap[0]
            state = self._states.get(lease)
            if state and state.queued == state.expiry == moment:
                return moment
            heapq.heappop(self._heap)
            if state and state.queued == moment:
                state.queued = math.inf
                self._queue(lease)
        return None

    def expire(self, now: float) -> list[int]:
        """Remove the leases that have expired, and return them, earliest first."""
        expired = []
        while (expiry := self.next_expiry()) is not None and expiry <= now:
            expired.append(self._heap[0][1])
            self.remove(expired[-1])
        return expired

    def extend_after_pause(self, now: float) -> None:
        """Extend the leases that expired while this process did not run and received no renewal.

        Each gets as much time as has passed since its expiry, at most its length, and only once between two renewals.
        """
        for lease, state in self._states.items():
            if state.expiry <= now and not state.extended:
                state.extended, state.expiry = True, now + min(now - state.expiry, state.seconds)
                self._queue(lease)

    def _queue(self, lease: int) -> None:
        state = self._states[lease]
        if state.expiry < state.queued:
            state.queued = state.expiry
            heapq.heappush(self._heap, (state.expiry, lease))
