"""The loop of polls: decides when to poll a library without callbacks for completed requests.

    mode         what comes next                                                         `wake`
    SPINNING     a poll, as soon as the loop has run its other callbacks                 changes nothing
    YIELDING     after events: the tasks that they woke run, then the pause is chosen    polls instead
    ANNOUNCING   the peers know that this rank sleeps: a last poll, after `announce_s`   changes nothing
    NAPPING      a poll, after a nap                                                     polls instead

A doorbell polls at once in every mode. Spinning ends after `spin_s` quiet seconds (`urgent_spin_s` if a wait is urgent
or a doorbell rang), or when this rank computes. The pause depends on the quiet time so far, on whether this rank
computes, and on how many ranks share the node's cores (`PollBackoff`).

Why naps: torch in a thread runs 2 to 3 times slower beside a loop that spins (because of the interpreter's lock), but
only 0 to 3 % slower beside a loop that polls each millisecond; and 64 spinning ranks on 2 cores leave no core for work.
"""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any

from transports.aio.futures import resolve
from transports.errors import TransportError

Mode = Enum("Mode", "SPINNING YIELDING ANNOUNCING NAPPING")
"""What the engine does next: see the table above."""


class SleepState(IntEnum):
    """The way in which a rank sleeps; the peers on its node read it before they wake it."""

    AWAKE = 0
    IDLE = 1
    COMPUTING = 2  # wake it only when a message has been sent, not before


@dataclass(frozen=True, slots=True)
class PollBackoff:
    """The length of the nap between two polls.

    Args:
        spin_s: time to poll without naps after the last event; between polls the rank only yields its core.
        urgent_spin_s: the same for an urgent wait, as in a collective's inner loop, or after a doorbell rang.
        min_nap_s: the first nap.
        max_nap_s: the maximum nap.
        computing_nap_s: the minimum nap while this rank computes; it then naps between all polls.
        inline_spin_s: how long a waiting task may first poll by itself (`spin_until`), blocking the loop.
        announce_s: between announcing sleep and the next poll; the loop runs other work meanwhile.
        sleep_s: the nap while no request is pending and all peers wake this rank when they send.
        quiet_before_sleep_s: quiet time required for that: MPI may report a message only some polls after the doorbell.
        nap_fraction: a nap lasts this share of the quiet time so far, which bounds the relative delay that it causes.
    """

    spin_s: float = 1e-3
    urgent_spin_s: float = 1e-3
    min_nap_s: float = 100e-6
    max_nap_s: float = 1e-3
    computing_nap_s: float = 1e-3
    inline_spin_s: float = 50e-6
    announce_s: float = 0.0
    sleep_s: float = 50e-3
    quiet_before_sleep_s: float = 2e-3
    nap_fraction: float = 1 / 8

    @classmethod
    def on_node(cls, ranks: int, cores: int) -> "PollBackoff":
        """Polling without naps if every rank has a core; the more ranks share a core, the longer the naps, up to 20 ms.

        A poll costs about 30 µs; with these naps, polling takes at most a quarter of the cores. Naps in the inner loop
        of a collective made it up to 2.5 times slower with 4 ranks on 2 cores.
        """
        if ranks <= cores:
            return cls()
        max_nap_s = min(ranks / cores / 8 * 1e-3, 20e-3)
        return cls(spin_s=0.0, urgent_spin_s=0.5e-3, inline_spin_s=0.0, announce_s=50e-6, max_nap_s=max_nap_s)

    def nap(self, quiet: float, computing: bool, urgent: bool = False, asleep: bool = False) -> float:
        """Seconds to nap after this many quiet seconds; 0: poll again after one turn of the loop."""
        if quiet < (self.urgent_spin_s if urgent else self.spin_s) and not computing:
            return 0.0
        if asleep and quiet > self.quiet_before_sleep_s:
            return self.sleep_s
        shortest = self.computing_nap_s if computing else self.min_nap_s
        return max(shortest, min(quiet * self.nap_fraction, self.max_nap_s))


class PollLoop(ABC):
    """Polls until it is stopped; a subclass says what a poll is.

    Args:
        backoff: how long to nap.
        announce_sleep: called with the new state one poll before the first nap, and when this rank polls without naps
            again. During a nap only a doorbell wakes this rank at once.
    Attributes:
        requests: what the polls complete; while there are any, naps stay short.
        failure: the error that ended the polls; None while there are any.
    """

    def __init__(self, backoff: PollBackoff, announce_sleep: Callable[[SleepState], None]):
        self._backoff, self._announce_sleep = backoff, announce_sleep
        self._loop = asyncio.get_running_loop()
        self.requests: list[Any] = []
        self.failure: TransportError | None = None
        self._poll_waiters: list[asyncio.Future[None]] = []
        self._run_ended: asyncio.Future[None] = self._loop.create_future()
        self._next_step: asyncio.Handle | None = None
        self._mode, self._announced = Mode.SPINNING, SleepState.AWAKE
        self._doorbell_rang = self._computing = self._wakeable = self._stopped = False
        self._urgent, self._active = 0, self._loop.time()

    @abstractmethod
    def _poll_burst(self) -> bool:
        """Poll, once or several times. Returns whether any event came."""

    @property
    def is_computing(self) -> bool:
        """Whether this rank computes; callers then avoid busy loops."""
        return self._computing

    async def run_polls(self) -> None:
        """Poll until `stop`.

        The polls are timer callbacks, at a third of the cost of a sleeping task; it matters with 64 ranks on 2 cores.
        """
        self._enter(Mode.SPINNING, self._poll_tick)
        try:
            await self._run_ended
        finally:
            if self._next_step is not None:
                self._next_step.cancel()

    def next_poll(self) -> asyncio.Future[None]:
        """A future that is done after the next poll, or at once after `fail`."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        if self.failure is None:
            self._poll_waiters.append(waiter)
        else:
            waiter.set_result(None)
        return waiter

    def stop(self) -> None:
        """End `run` after its current poll."""
        self._stopped = True
        self.wake()

    def wake(self) -> None:
        """End the nap and poll without naps again after an event on this rank."""
        self._active = self._loop.time()
        if self._next_step is not None and self._mode in (Mode.YIELDING, Mode.NAPPING):
            self._next_step.cancel()
            self._enter(Mode.SPINNING, self._poll_tick)
            if self._backoff.spin_s and not self._computing:  # else this rank would announce sleep twice
                self._announce(SleepState.AWAKE)

    def on_doorbell(self) -> None:
        """A peer has rung and marked this rank awake: poll without naps for its message."""
        self._announced, self._doorbell_rang, self._active = SleepState.AWAKE, True, self._loop.time()
        if self._next_step is not None:
            self._next_step.cancel()
            self._poll_tick()

    def set_wakeable(self, wakeable: bool) -> None:
        """State whether every peer that sends to this rank also rings its doorbell; if so, long naps are safe."""
        self._wakeable = wakeable
        self.wake()

    def set_computing(self, busy: bool) -> None:
        self._computing = busy
        self.wake()

    def _enter(self, mode: Mode, step: Callable[[], None], pause: float = 0.0) -> None:
        """Enter a mode: this step comes next, after a pause in seconds; no other may be due."""
        self._mode = mode
        self._next_step = self._loop.call_later(pause, step) if pause else self._loop.call_soon(step)

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

    def _resolve_poll_waiters(self) -> None:
        waiters, self._poll_waiters = self._poll_waiters, []
        for waiter in waiters:
            resolve(waiter, None)
