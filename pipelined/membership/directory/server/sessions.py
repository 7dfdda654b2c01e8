"""The sessions of a directory's clients, as its state machine keeps them: leases, and the results of requests.

A client numbers its requests upwards. Each request also carries the number below which the client expects no more
replies; the results from that number on are kept. So a repeated request is carried out once, and gets the reply of the
first. For the leases the caller passes the current time; no clock is read here.

Source: Lee et al. (2015), Implementing Linearizability at Large Scale and Low Latency, section 3.
"""

import heapq
import math
from collections import Counter
from dataclasses import dataclass, field

from pipelined.membership.directory.api import Full
from pipelined.membership.directory.limits import DirectoryLimits
from pipelined.membership.directory.messages import RequestId, StaleRequest


@dataclass(slots=True)
class ClientSession:
    """What is kept of one client.

    Args:
        settled: the greatest `settled` of its requests.
        results: of its requests from that number on, by number.
    """

    settled: int = 0
    results: dict[int, int] = field(default_factory=dict)


class RequestDedup:
    """The sessions of a directory's clients.

    Attributes:
        sessions: by client, the client with the oldest last request first.
        holders: for each lease that exists, the client to which it was granted.
    """

    def __init__(self, limits: DirectoryLimits):
        self._limits = limits
        self.sessions: dict[int, ClientSession] = {}
        self.holders: dict[int, int] = {}
        self._held: Counter[int] = Counter()

    def enter(self, client: int) -> None:
        """Add a client. Beyond the limit another is forgotten: the longest silent without a lease, if there is one."""
        while len(self.sessions) >= self._limits.clients:
            self._forget()
        self.sessions[client] = ClientSession()

    def hold(self, client: int, lease: int) -> None:
        """Note that a client was granted a lease: clients without a lease are forgotten before it."""
        self.holders[lease] = client
        self._held[client] += 1

    def release(self, lease: int) -> None:
        """Note that a lease has ended."""
        client = self.holders.pop(lease, None)
        if client is not None:
            self._held[client] -= 1
            if not self._held[client]:
                del self._held[client]

    def result(self, request: RequestId) -> int | None:
        """The result of the request, if it has been carried out.

        Raises:
            StaleRequest: its result is no longer kept, so whether it was carried out is unknown.
            Full: the client has too many requests that it has not settled.
        """
        session = self.sessions.get(request.client)
        if session is None:
            fact = f"no such client (client: {request.client})"
            raise StaleRequest(f"{fact}; forgotten after a long silence, or from an earlier directory")
        if request.number < session.settled:
            raise StaleRequest(f"settled before (request: {request.number}, settled below: {session.settled})")
        if request.number in session.results:
            return session.results[request.number]
        if sum(number >= request.settled for number in session.results) >= self._limits.unsettled:
            fact = f"too many requests unsettled (most: {self._limits.unsettled})"
            raise Full(f"{fact}; wait for the replies to earlier ones")
        return None

    def keep(self, request: RequestId, result: int) -> None:
        """Keep the result of a request that was carried out."""
        session = self.sessions.pop(request.client, None) or ClientSession()  # the journal may come from other limits
        session.settled = max(session.settled, request.settled)
        session.results = {number: kept for number, kept in session.results.items() if number >= session.settled}
        session.results[request.number] = result
        self.sessions[request.client] = session

    def _forget(self) -> None:
        """Forget one client. Those with leases go to the end of the order, so that the next search is short."""
        for client in list(self.sessions):
            session = self.sessions.pop(client)
            if client not in self._held:
                return
            self.sessions[client] = session
        del self.sessions[next(iter(self.sessions))]


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
        """Remove a lease; `next_end` skips its items in the heap."""
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

    def next_end(self) -> float | None:
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
        while (due := self.next_end()) is not None and due <= now:
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
