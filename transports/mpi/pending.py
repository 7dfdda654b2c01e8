"""Pending requests of a library without callbacks, and the callback of each.

One call tests all requests, and each callback is called exactly once: with the outcome, or with the error that ended
the polling. Knows neither loop nor clock nor MPI, so it is apart from `transports.mpi.requests`, which imports MPI.
"""

from collections.abc import Callable, Sequence
from typing import Any

Done = Callable[[Any], None]
Test = Callable[[list[Any]], list[tuple[int, Any]]]


class PendingRequests:
    """Requests that are watched until they are done.

    Args:
        test: given the requests, returns (index, outcome) of those done now; an outcome that is an exception is a
            failure. It never blocks.

    Attributes:
        requests: those watched now.
        failure: the error that ended the watching; None while requests are watched.
    """

    def __init__(self, test: Test):
        self._test = test
        self._listen: Callable[[], bool] = lambda: False
        self.requests: list[Any] = []
        self._dones: list[Done] = []
        self.failure: Exception | None = None

    def listen(self, listen: Callable[[], bool]) -> None:
        """Let each poll also call `listen`, for what comes without a request; it returns whether anything came."""
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
        """Test all requests once, call `listen` and the callbacks of the finished; return whether anything happened."""
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
        """Finish a watched request of which the caller has seen the outcome; it is not tested again."""
        at = next(index for index, watched in enumerate(self.requests) if watched is request)
        del self.requests[at]
        self._dones.pop(at)(outcome)

    def fail(self, error: Exception) -> list[Any]:
        """Finish everything watched, now or later, with this error. Returns the unfinished requests."""
        self.failure = self.failure or error
        requests, dones, self.requests, self._dones = self.requests, self._dones, [], []
        for done in dones:
            done(self.failure)
        return requests
