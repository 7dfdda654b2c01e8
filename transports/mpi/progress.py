"""The progress engine: the requests that wait for a library without callbacks, and the polls that complete them.

`transports.mpi.poll_loop` decides when to poll. No MPI here: the caller passes tests.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from transports.aio.futures import resolve
from transports.errors import TransportError
from transports.mpi.poll_loop import PollBackoff, PollLoop, SleepState

Callback = Callable[[Any], None]
Test = Callable[[list[Any]], list[tuple[int, Any]]]
MAX_PENDING_REQUESTS, URGENT_POLLS = 8, 4


class Receiver(Protocol):
    """Receives what arrives without a request: an `MpiFrameReceiver`. The engine polls it with its requests."""

    def receive_arrived(self) -> bool:
        """Receive what has arrived. Returns whether there was anything. It must not block."""


class ProgressEngine(PollLoop):
    """Polls pending requests until they are done. A callback is called once: with the outcome, or the error of `fail`.

    Args:
        test: takes the requests, returns (index, outcome) of those that are done; an exception as outcome is a
            failure. It must not block.
        backoff, announce_sleep: as for `PollLoop`.
    """

    def __init__(
        self, test: Test, backoff: PollBackoff, announce_sleep: Callable[[SleepState], None] = lambda state: None
    ):
        super().__init__(backoff, announce_sleep)
        self._test = test
        self._receiver: Receiver | None = None
        self._callbacks: list[Callback] = []

    def watch(self, request: Any, callback: Callback) -> None:
        """Call `callback(outcome)` once the request is done; at once after `fail`."""
        if self.failure is not None:
            callback(self.failure)
        else:
            self.requests.append(request)
            self._callbacks.append(callback)
            self.wake()

    def watch_all(self, requests: Sequence[Any], callback: Callback) -> None:
        """Call `callback(outcome)` once all the requests are done: with the first failure, or else the last outcome."""
        outcomes: list[Any] = []

        def one_done(outcome: Any) -> None:
            outcomes.append(outcome)
            if len(outcomes) == len(requests):
                callback(next((outcome for outcome in outcomes if isinstance(outcome, Exception)), outcome))

        for request in requests:
            self.watch(request, one_done)
        if not requests:
            callback(self.failure)

    def wait(self, *requests: Any, callback: Callback | None = None, urgent: bool = False) -> asyncio.Future[Any]:
        """A future for the outcome as in `watch_all`. Cancelling it leaves the requests watched.

        Args:
            urgent: poll without naps for a while even if ranks share cores.
            callback: called with the outcome before the future is resolved, even if it was cancelled.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        self._urgent += urgent

        def finished(outcome: Any) -> None:
            self._urgent -= urgent
            if callback is not None:
                callback(outcome)
            resolve(future, outcome)

        self.watch_all(requests, finished)
        return future

    def spin_until(self, test: Callable[[], Any], max_seconds: float = math.inf, *, with_polls: bool = False) -> Any:
        """Call `test` until it returns something or time is up, without a turn of the loop. Returns what it returned.

        Tests only once while this rank computes, or with over `MAX_PENDING_REQUESTS`: then the loop has other work.

        Args:
            test: returns None while there is nothing.
            max_seconds: maximum time in seconds, if less than `PollBackoff.inline_spin_s`.
            with_polls: poll before each further test, for what a poll brings; else the test looks by itself.
        """
        result = test()
        if result is None:
            deadline = self._loop.time() + min(max_seconds, self._inline_spin_s)
            while result is None and self._loop.time() < deadline:
                if with_polls:
                    self._poll()
                result = test()
        return result

    async def test_while(self, request: Any, test: Callable[[], Any], seconds: float) -> Any:
        """Wait for a request. For this many seconds, test it directly, with a turn of the loop between two tests.

        Without these tests the sender of 1 MiB would see its completion about 10 µs later, at the next poll.

        Args:
            test: returns the request's outcome; None while it is pending.
        """
        future = self.wait(request)
        deadline = self._loop.time() + seconds
        try:
            while not future.done() and self._inline_spin_s and self._loop.time() < deadline:
                outcome = self.spin_until(test)
                if outcome is None:
                    await asyncio.sleep(0)
                else:
                    self._finish(request, outcome)
        except asyncio.CancelledError:
            future.cancel()
            raise
        return await future

    @property
    def _inline_spin_s(self) -> float:
        return 0.0 if self._computing or len(self.requests) > MAX_PENDING_REQUESTS else self._backoff.inline_spin_s

    async def run(self, receiver: Receiver | None = None) -> None:
        """Poll the receiver and the requests until `stop` or `fail`."""
        self._receiver = receiver
        await self.run_polls()

    def _poll_burst(self) -> bool:
        """Poll; several times if a wait is urgent, because a turn of the loop takes longer than several polls."""
        times = URGENT_POLLS if self._urgent and self._inline_spin_s else 1
        return any(self._poll() for _ in range(times))

    def _poll(self) -> bool:
        """Receive, test all requests once, call the callbacks of those done. Returns whether any event came."""
        any_event = self._receiver is not None and self._receiver.receive_arrived()
        if not (finished := self._test(self.requests) if self.requests else []):
            return any_event
        callbacks = [(self._callbacks[index], outcome) for index, outcome in finished]
        for index in sorted([index for index, _ in finished], reverse=True):
            del self.requests[index], self._callbacks[index]
        for callback, outcome in callbacks:
            callback(outcome)
        return True

    def _finish(self, request: Any, outcome: Any) -> None:
        """Finish a watched request with the outcome of the caller's own test; the request is not tested again."""
        index = next(index for index, watched in enumerate(self.requests) if watched is request)
        del self.requests[index]
        self._callbacks.pop(index)(outcome)

    def fail(self, error: TransportError) -> list[Any]:
        """Finish all requests watched now or later with this error. Returns the unfinished requests."""
        self.failure = self.failure or error
        requests, self.requests = self.requests, []
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self.failure)
        self._resolve_poll_waiters()
        self.stop()
        return requests
