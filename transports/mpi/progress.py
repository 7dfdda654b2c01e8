"""The progress engine: decides when to poll a library without callbacks for completed requests.

    state       entered                                        left
    spinning    any event, or a doorbell rang                  after `spin_s` quiet seconds (`urgent_spin_s` if urgent)
    napping     quiet since then, or this rank computes        at the next poll, or by `wake`
    asleep      as napping; the peers know it                  as napping, or when a peer rings the doorbell

The time to the next poll depends on the quiet time so far, on whether this rank computes, and on how many ranks share
the node's cores (`transports.mpi.backoff`). No MPI here: the caller passes the function that tests requests.
"""

import asyncio
import math
import os
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Protocol

from transports.errors import TransportError
from transports.event_loop import resolve
from transports.mpi.backoff import PollBackoff

Done = Callable[[Any], None]
Test = Callable[[list[Any]], list[tuple[int, Any]]]
MAX_PENDING_REQUESTS, URGENT_POLLS = 8, 4


class SleepState(IntEnum):
    """How a rank sleeps; the peers on its node read it before they wake it."""

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
        self._dones: list[Done] = []
        self.failure: TransportError | None = None
        self._turns: list[asyncio.Future[None]] = []
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._next: asyncio.Handle | None = None
        self._sleep_state = SleepState.AWAKE
        self._napping = self._rung = self._computing = self._wakeable = self._stopped = False
        self._urgent = 0
        self._active = self._loop.time()

    @property
    def is_computing(self) -> bool:
        """Whether this rank computes; callers then avoid busy loops."""
        return self._computing

    def watch(self, request: Any, done: Done) -> None:
        """Call `done(outcome)` once the request is done; at once after `fail`."""
        if self.failure is not None:
            done(self.failure)
        else:
            self.requests.append(request)
            self._dones.append(done)
            self.wake()

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

    def wait(self, *requests: Any, done: Done | None = None, urgent: bool = False) -> asyncio.Future[Any]:
        """A future for the outcome as in `watch_all`. Cancelling it leaves the requests watched.

        Args:
            urgent: poll without naps for a while even if ranks share cores.
            done: called with the outcome before the future is resolved, even if it was cancelled.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        self._urgent += urgent

        def finished(outcome: Any) -> None:
            self._urgent -= urgent
            if done is not None:
                done(outcome)
            resolve(future, outcome)

        self.watch_all(requests, finished)
        return future

    def turn(self) -> asyncio.Future[None]:
        """A future that is done after the next poll, or at once after `fail`."""
        turn: asyncio.Future[None] = self._loop.create_future()
        if self.failure is None:
            self._turns.append(turn)
        else:
            turn.set_result(None)
        return turn

    def poll_for(self, test: Callable[[], Any]) -> Any:
        """Poll here for up to `PollBackoff.inline_spin_s` seconds, without a turn of the loop.

        Checks only once while this rank computes, or with over `MAX_PENDING_REQUESTS`: then the loop has other work.

        Args:
            test: returns the arrival, or a false value before it.
        """
        found = test()
        if not found:
            end = self._loop.time() + self._time_to_spare
            while not found and self._loop.time() < end:
                self._poll()
                found = test()
        return found

    async def poll_while(self, request: Any, test: Callable[[], Any], seconds: float) -> Any:
        """Wait for a request. For this many seconds, test it directly, with a turn of the loop between two tests.

        Without these tests the sender of 1 MiB would see its completion about 10 µs later, at the next poll.

        Args:
            test: returns the request's outcome; None while it is pending.
        """
        future, end = self.wait(request), self._loop.time() + seconds
        try:
            while not future.done() and self._time_to_spare and self._loop.time() < end:
                outcome = self.poll_until(test)
                if outcome is None:
                    await asyncio.sleep(0)
                else:
                    self._finish_seen(request, outcome)
        except asyncio.CancelledError:
            future.cancel()
            raise
        return await future

    def poll_until(self, test: Callable[[], Any], most: float = math.inf) -> Any:
        """Call `test` for a request that is not watched yet, at least once, until it returns an outcome or time is up.

        Args:
            most: maximum time in seconds, if less than `PollBackoff.inline_spin_s`.
        """
        seen = test()
        if seen is None:
            end = self._loop.time() + min(most, self._time_to_spare)
            while seen is None and self._loop.time() < end:
                seen = test()
        return seen

    @property
    def _time_to_spare(self) -> float:
        return 0.0 if self._computing or len(self.requests) > MAX_PENDING_REQUESTS else self._backoff.inline_spin_s

    async def run(self, receiver: Receiver | None = None) -> None:
        """Poll the receiver and the requests until `stop` or `fail`.

        The polls are timer callbacks, at a third of the cost of a sleeping task; it matters with 64 ranks on 2 cores.
        """
        self._receiver = receiver
        self._next = self._loop.call_soon(self._poll_tick)
        try:
            await self._ended
        finally:
            self._next.cancel()

    def _poll_tick(self) -> None:
        """Poll once and arm the timer; the tasks that the poll woke run before the timer is armed."""
        self._napping = False
        try:
            news = self._poll_burst()
        except Exception as error:
            return resolve(self._ended, error)
        self._resolve_turns()
        if self._stopped:
            resolve(self._ended, None)
        elif news:
            self._active, self._rung, self._napping = self._loop.time(), False, True
            self._next = self._loop.call_soon(self._schedule_next)
        else:
            self._schedule_next()

    def _poll_burst(self) -> bool:
        """Poll; several times if a wait is urgent, because a turn of the loop takes longer than several polls."""
        times = URGENT_POLLS if self._urgent and self._time_to_spare else 1
        return any(self._poll() for _ in range(times))

    def _poll(self) -> bool:
        """Receive, test all requests once, call the callbacks of those done. Returns whether any event came."""
        news = self._receiver is not None and self._receiver.receive_arrived()
        if not (finished := self._test(self.requests) if self.requests else []):
            return news
        dones = [(self._dones[index], outcome) for index, outcome in finished]
        for index in sorted([index for index, _ in finished], reverse=True):
            del self.requests[index], self._dones[index]
        for done, outcome in dones:
            done(outcome)
        return True

    def _finish_seen(self, request: Any, outcome: Any) -> None:
        """Finish a watched request with the outcome that the caller has seen; the request is not tested again."""
        at = next(index for index, watched in enumerate(self.requests) if watched is request)
        del self.requests[at]
        self._dones.pop(at)(outcome)

    def _schedule_next(self) -> None:
        """Arm the timer. After announcing sleep, poll once more: a sender may have checked just before."""
        quiet, asleep = self._loop.time() - self._active, self._wakeable and not self.requests
        pause = self._backoff.nap(quiet, self._computing, self._urgent > 0 or self._rung, asleep)
        state = SleepState.AWAKE if pause == 0 else SleepState.COMPUTING if self._computing else SleepState.IDLE
        self._napping = pause > 0 and self._sleep_state == state
        self._announce(state)
        if pause == 0:
            os.sched_yield()
        pause = pause if self._napping or pause == 0 else self._backoff.announce_s
        self._next = self._loop.call_later(pause, self._poll_tick) if pause else self._loop.call_soon(self._poll_tick)

    def _announce(self, state: SleepState) -> None:
        if self._sleep_state != state:
            self._sleep_state = state
            self._announce_sleep(state)

    def stop(self) -> None:
        """End `run` after its current poll."""
        self._stopped = True
        self.wake()

    def fail(self, error: TransportError) -> list[Any]:
        """Finish all requests watched now or later with this error. Returns the unfinished requests."""
        self.failure = self.failure or error
        requests, dones, self.requests, self._dones = self.requests, self._dones, [], []
        for done in dones:
            done(self.failure)
        self._resolve_turns()
        self.stop()
        return requests

    def wake(self) -> None:
        """End the nap and poll without naps again after an event on this rank."""
        self._active = self._loop.time()
        if self._napping and self._next is not None:
            self._napping = False  # at most one tick is scheduled at any time
            self._next.cancel()
            self._next = self._loop.call_soon(self._poll_tick)
            if self._backoff.spin_s and not self._computing:  # else this rank would announce sleep twice
                self._announce(SleepState.AWAKE)

    def on_doorbell(self) -> None:
        """A peer has rung and marked this rank awake: poll without naps for its message."""
        self._sleep_state, self._rung, self._active = SleepState.AWAKE, True, self._loop.time()
        if self._next is not None:
            self._next.cancel()
            self._poll_tick()

    def set_wakeable(self, woken: bool) -> None:
        """State whether every peer that sends to this rank also rings its doorbell; if so, long naps are safe."""
        self._wakeable = woken
        self.wake()

    def computing(self, busy: bool) -> None:
        self._computing = busy
        self.wake()

    def _resolve_turns(self) -> None:
        turns, self._turns = self._turns, []
        for turn in turns:
            resolve(turn, None)
