"""The sessions of a directory's clients, as its state machine keeps them: results of requests, and owners of leases.

A client numbers its requests upwards. Each request also carries the number below which the client expects no more
replies; the results from that number on are kept. So a repeated request is carried out once, and gets the reply of the
first.

Source: Lee et al. (2015), Implementing Linearizability at Large Scale and Low Latency, section 3.
"""

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


class ClientSessions:
    """The sessions of a directory's clients.

    Attributes:
        sessions: by client, the one with the oldest last request first.
        owners: for each lease that exists, the client to which it was granted.
    """

    def __init__(self, limits: DirectoryLimits):
        self._limits = limits
        self.sessions: dict[int, ClientSession] = {}
        self.owners: dict[int, int] = {}
        self._lease_counts: Counter[int] = Counter()

    def enter(self, client: int) -> None:
        """Add a client. Beyond the limit another is forgotten: the longest silent without a lease, if there is one."""
        while len(self.sessions) >= self._limits.clients:
            self._forget()
        self.sessions[client] = ClientSession()

    def add_lease(self, client: int, lease: int) -> None:
        """Note that a client was granted a lease: clients without a lease are forgotten before it."""
        self.owners[lease] = client
        self._lease_counts[client] += 1

    def remove_lease(self, lease: int) -> None:
        """Note that a lease has ended."""
        client = self.owners.pop(lease, None)
        if client is not None:
            self._lease_counts[client] -= 1
            if not self._lease_counts[client]:
                del self._lease_counts[client]

    def find_result(self, request: RequestId) -> int | None:
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

    def keep_result(self, request: RequestId, result: int) -> None:
        """Keep the result of a request that was carried out."""
        session = self.sessions.pop(request.client, None) or ClientSession()  # the journal may come from other limits
        session.settled = max(session.settled, request.settled)
        session.results = {number: value for number, value in session.results.items() if number >= session.settled}
        session.results[request.number] = result
        self.sessions[request.client] = session

    def _forget(self) -> None:
        """Forget one client. Those with leases go to the end of the order, so that the next search is short."""
        for client in list(self.sessions):
            session = self.sessions.pop(client)
            if client not in self._lease_counts:
                return
            self.sessions[client] = session
        del self.sessions[next(iter(self.sessions))]
