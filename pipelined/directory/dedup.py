"""What clients asked for came to. The rule: a request that comes again is answered again, and never done again.

A client numbers its requests upwards and says with each below which number it waits for nothing any more; what it waits
for is remembered. Sources: Lee et al. (2015), Implementing Linearizability at Large Scale and Low Latency, section 3.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from pipelined.directory.api import Full
from pipelined.directory.limits import Limits


class DirectoryRequest(NamedTuple):
    """Names one request.

    Args:
        client: who asks, as `StateMachine.enter` numbered it.
        number: of the request, in the order of asking.
        settled: all requests with smaller numbers have been answered or given up.
    """

    client: int
    number: int
    settled: int


class StaleRequest(Exception):
    """The client has settled this request, or is not known any more; it must not be done."""


@dataclass(slots=True)
class Client:
    """One client.

    Args:
        settled: the greatest it has said.
        results: of its requests from there on, by their numbers.
    """

    settled: int = 0
    results: dict[int, int] = field(default_factory=dict)


class RequestDedup:
    """The clients of a directory, from the one longest silent to the last heard.

    Attributes:
        holders: for each lease that exists, the client to which it was granted.
    """

    def __init__(self, limits: Limits):
        self._limits = limits
        self.clients: dict[int, Client] = {}
        self.holders: dict[int, int] = {}
        self._held: Counter[int] = Counter()

    def enter(self, client: int) -> None:
        """A new client; where there are too many, one without a lease is forgotten for it, the longest silent first."""
        while len(self.clients) >= self._limits.clients:
            self._forget()
        self.clients[client] = Client()

    def hold(self, client: int, lease: int) -> None:
        """A client was granted a lease: it is in use, however seldom it asks for anything."""
        self.holders[lease] = client
        self._held[client] += 1

    def release(self, lease: int) -> None:
        """A lease has ended."""
        client = self.holders.pop(lease, None)
        if client is not None:
            self._held[client] -= 1
            if not self._held[client]:
                del self._held[client]

    def result(self, request: DirectoryRequest) -> int | None:
        """What the request came to, if it has been done.

        Raises:
            StaleRequest: it can no longer be known whether it has.
            Full: the client has too many requests that it has not settled.
        """
        client = self.clients.get(request.client)
        if client is None:
            raise StaleRequest(f"no such client (client: {request.client}); it was silent for long, or is of before")
        if request.number < client.settled:
            raise StaleRequest(f"settled before (request: {request.number}, settled below: {client.settled})")
        if request.number not in client.results and len(client.results) >= self._limits.unsettled:
            fact = f"too many requests unsettled (most: {self._limits.unsettled})"
            raise Full(f"{fact}; wait for the answers of earlier ones")
        return client.results.get(request.number)

    def keep(self, request: DirectoryRequest, result: int) -> None:
        """It has been done, and came to this."""
        client = self.clients.pop(request.client, None) or Client()  # a journal may be of other limits
        client.settled = max(client.settled, request.settled)
        client.results = {number: told for number, told in client.results.items() if number >= client.settled}
        client.results[request.number] = result
        self.clients[request.client] = client

    def _forget(self) -> None:
        """Forget one client. Those with leases go to the end of the order, so that the next search is short."""
        for client in list(self.clients):
            record = self.clients.pop(client)
            if client not in self._held:
                return
            self.clients[client] = record
        del self.clients[next(iter(self.clients))]
