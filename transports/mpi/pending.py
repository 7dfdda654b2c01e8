"""Pending requests of a library without callbacks, and the callback of each.

One call tests all requests. Each callback is called exactly once: with the outcome, or with the error that ended the
polling. Uses no loop, no clock and no MPI, unlike `transports.mpi.requests`, which imports MPI.
"""

from collections.abc import Callable, Sequence
from typing import Any

Done = Callable[[Any], None]
Test = Callable[[list[Any]], list[tuple[int, Any]]]


class PendingRequests:
    """Requests that are watched until they are done.

    Args:
        test: takes the requests, returns (index, outcome) of those that are done; an exception as outcome is a
            failure. It must not block.

    Attributes:
        requests: the watched requests.
        failure: the error that ended the watching; None while requests are watched.
    """

    def __init__(self, test: Test):
        self._test = test
        self._listen: Callable[[], bool] = lambda: False
        self.requests: list[Any] = []
        self._dones: list[Done] = []
        self.failure: Exception | None = None

    def listen(self, listen: Callable[[], bool]) -> None:
        """Call `listen` at each poll, for arrivals without a request; it returns whether anything came."""
        self._listen = listen

    def watch(self, request: Any, done: Done) -> None:
        """Call `done(outcome)` once the request is done; at once after `fail`."""
        if self.failure is not None:
            done(self.failure)
        else:
            self.requests.append(request)
            self._dones.append(done)

    def watch_all(self, requests: Sequence[Any], done: Done) -> None:
        """Call `done(outcome)` once all the requests are done: with the first failure, or else the last outcome."""
        outcomes: list[Any] = []

        def one_done(outcome: Any) -> None:
            outcomes.append(outcome)
            if len(outcomes) == len(requests):
                done(next((outcome for outcome in outcomes if isinstance(outcome, Exception)), outcome))

        for request in requests:
            self.watch(request, one_done)
        if not requests:
            done(self.failure)

    def poll(self) -> bool:
        """Call `listen`, test all requests once, call the callbacks of those done. Returns whether any event came."""
        news = self._listen()
        finished = self._test(self.requests) if self.requests else []
        if not finished:
            return news
        dones = [(self._dones[index], outcome) for index, outcome in finished]
        for index in sorted([index for index, _ in finished], reverse=True):
            del self.requests[index], self._dones[index]
        for done, outcome in dones:
            done(outcome)
        return True

    def settle(self, request: Any, outcome: Any) -> None:
        """Finish a watched request with the outcome that the caller has seen; the request is not tested again."""
        at = next(index for index, watched in enumerate(self.requests) if watched is request)
        del self.requests[at]
        self._dones.pop(at)(outcome)

    def fail(self, error: Exception) -> list[Any]:
        """Finish all requests watched now or later with this error. Returns the unfinished requests."""
        self.failure = self.failure or error
        requests, dones, self.requests, self._dones = self.requests, self._dones, [], []
        for done in dones:
            done(self.failure)
        return requests
