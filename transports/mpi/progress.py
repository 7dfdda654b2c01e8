"""The progress engine: decides when to poll a library without callbacks for completed requests.

    mode         what comes next                                                         `wake`
    SPINNING     a poll, as soon as the loop has run its other callbacks                 changes nothing
    YIELDING     after events: the tasks that they woke run, then the pause is chosen    polls instead
    ANNOUNCING   the peers know that this rank sleeps: a last poll, after `announce_s`   changes nothing
    NAPPING      a poll, after a nap                                                     polls instead

A doorbell polls at once in every mode. Spinning ends after `spin_s` quiet seconds (`urgent_spin_s` if a wait is urgent
or a doorbell rang), or when this rank computes. The pause depends on the quiet time so far, on whether this rank
computes, and on how many ranks share the node's cores (`transports.mpi.poll_loop`). No MPI here: the caller passes
tests.
"""

import asyncio
import math
import os
from collections.abc import Callable, Sequence
from enum import Enum, IntEnum
from typing import Any, Protocol

from transports.aio.futures import resolve
from transports.errors import TransportError
from transports.mpi.poll_loop import PollBackoff

Callback = Callable[[Any], None]
Test = Callable[[list[Any]], list[tuple[int, Any]]]
Mode = Enum("Mode", "SPINNING YIELDING ANNOUNCING NAPPING")
"""What the engine does next: see the table above."""
MAX_PENDING_REQUESTS, URGENT_POLLS = 8, 4


class SleepState(IntEnum):
    """The way in which a rank sleeps; the peers on its node read it before they wake it."""

    AWAKE = 0
    IDLE = 1
    COMPUTING = 2  # wake it only when a message has been sent, not before


class Receiver(Protocol):
    """Receives what arrives without a request; the engine polls it with its requests."""

    def receive_arrived(self) -> bool:
        """Receive what has arrived. Returns whether there was anything. It must not block."""


class ProgressEngine:
    """Polls pending requests until they are done. A callback is called once: with the outcome, or the error of `fail`.

    Args:
        test: takes the requests, returns (index, outcome) of those that are done; an exception as outcome is a
            failure. It must not block.
        backoff: how long to nap.
        announce_sleep: called with the new state one poll before the first nap, and when this rank polls without naps
            again. During a nap only a doorbell wakes this rank at once.
    Attributes:
        requests: the watched requests.
        failure: the error that ended the watching; None while requests are watched.
    """

    def __init__(
        self, test: Test, backoff: PollBackoff, announce_sleep: Callable[[SleepState], None] = lambda state: None
    ):
        self._test, self._backoff, self._announce_sleep = test, backoff, announce_sleep
        self._loop = asyncio.get_running_loop()
        self._receiver: Receiver | None = None
        self.requests: list[Any] = []
        self._callbacks: list[Callback] = []
        self.failure: TransportError | None = None
        self._poll_waiters: list[asyncio.Future[None]] = []
        self._run_ended: asyncio.Future[None] = self._loop.create_future()
        self._next: asyncio.Handle | None = None
        self._mode, self._announced = Mode.SPINNING, SleepState.AWAKE
        self._doorbell_rang = self._computing = self._wakeable = self._stopped = False
        self._urgent, self._active = 0, self._loop.time()

    @property
    def is_computing(self) -> bool:
        """Whether this rank computes; callers then avoid busy loops."""
        return self._computing

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

    def next_poll(self) -> asyncio.Future[None]:
        """A future that is done after the next poll, or at once after `fail`."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        if self.failure is None:
            self._poll_waiters.append(waiter)
        else:
            waiter.set_result(None)
        return waiter

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
        """Poll the receiver and the requests until `stop` or `fail`.

        The polls are timer callbacks, at a third of the cost of a sleeping task; it matters with 64 ranks on 2 cores.
        """
        self._receiver = receiver
        self._enter(Mode.SPINNING, self._poll_tick)
        try:
            await self._run_ended
        finally:
            if self._next is not None:
                self._next.cancel()

    def _enter(self, mode: Mode, step: Callable[[], None], pause: float = 0.0) -> None:
        """Enter a mode: this step comes next, after a pause in seconds; no other may be due."""
        self._mode = mode
        self._next = self._loop.call_later(pause, step) if pause else self._loop.call_soon(step)

    def _poll_tick(self) -> None:
        """Poll once and choose what comes next."""
        self._mode = Mode.SPINNING
        try:
            any_event = self._poll_burst()
        except Exception as error:
            return resolve(self._run_ended, error)
        self._resolve_poll_waiters()
        if self._stopped:
            resolve(self._run_ended, None)
        elif any_event:
            self._active, self._doorbell_rang = self._loop.time(), False
            self._enter(Mode.YIELDING, self._choose_pause)
        else:
            self._choose_pause()

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

    def _choose_pause(self) -> None:
        """Choose the pause and the mode. After announcing sleep poll once more: a sender may have checked before."""
        quiet, asleep = self._loop.time() - self._active, self._wakeable and not self.requests
        pause = self._backoff.nap(quiet, self._computing, self._urgent > 0 or self._doorbell_rang, asleep)
        if pause == 0:
            self._announce(SleepState.AWAKE)
            os.sched_yield()
            self._enter(Mode.SPINNING, self._poll_tick)
        elif self._announce(SleepState.COMPUTING if self._computing else SleepState.IDLE):
            self._enter(Mode.ANNOUNCING, self._poll_tick, self._backoff.announce_s)
        else:
            self._enter(Mode.NAPPING, self._poll_tick, pause)

    def _announce(self, state: SleepState) -> bool:
        """Announce how this rank sleeps. Returns whether the peers did not know it."""
        if self._announced == state:
            return False
        self._announced = state
        self._announce_sleep(state)
        return True

    def stop(self) -> None:
        """End `run` after its current poll."""
        self._stopped = True
        self.wake()

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

    def wake(self) -> None:
        """End the nap and poll without naps again after an event on this rank."""
        self._active = self._loop.time()
        if self._next is not None and self._mode in (Mode.YIELDING, Mode.NAPPING):
            self._next.cancel()
            self._enter(Mode.SPINNING, self._poll_tick)
            if self._backoff.spin_s and not self._computing:  # else this rank would announce sleep twice
                self._announce(SleepState.AWAKE)

    def on_doorbell(self) -> None:
        """A peer has rung and marked this rank awake: poll without naps for its message."""
        self._announced, self._doorbell_rang, self._active = SleepState.AWAKE, True, self._loop.time()
        if self._next is not None:
            self._next.cancel()
            self._poll_tick()

    def set_wakeable(self, wakeable: bool) -> None:
        """State whether every peer that sends to this rank also rings its doorbell; if so, long naps are safe."""
        self._wakeable = wakeable
        self.wake()

    def set_computing(self, busy: bool) -> None:
        self._computing = busy
        self.wake()

    def _resolve_poll_waiters(self) -> None:
        waiters, self._poll_waiters = self._poll_waiters, []
        for waiter in waiters:
            resolve(waiter, None)
