"""Clocks: the real clock, and a virtual clock that jumps from timer to timer.

Code reads the time and sleeps through a clock that it is given, or by asyncio's timers: the loop of the virtual clock
moves both. So a run of hours on the real clock takes moments on the virtual one, and is the same each time.
"""

import asyncio
import math
import selectors
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
MAX_LISTED = 16
"""The most tasks that a `Deadlock` names."""


class Clock(Protocol):
    """The interface of a clock."""

    def now(self) -> float:
        """Seconds; only differences mean anything."""

    async def sleep(self, seconds: float) -> None:
        """Wait this long; 0 lets every other ready task run once."""


class RealClock:
    """The machine's clock. An epoll loop rounds its sleeps up to the next millisecond; a select loop does not."""

    def now(self) -> float:
        return time.perf_counter()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class VirtualClock:
    """The clock of `run_virtual`; its time advances only when no task can run.

    Raises:
        RuntimeError: from every method, outside `run_virtual`.
    """

    def now(self) -> float:
        return _virtual_loop().time()

    async def sleep(self, seconds: float) -> None:
        loop = _virtual_loop()
        await (loop.sleep_until(loop.time() + seconds) if seconds > 0 else asyncio.sleep(0))

    def call_at(self, moment: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call back at a moment, unless the returned handle is cancelled before."""
        return _virtual_loop().call_at(moment, callback)


class Deadlock(RuntimeError):
    """Every task waits and no timer is set; the message lists the waiting tasks and where each waits."""


def run_virtual(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a new event loop with virtual time from 0, and return its result.

    That loop serves no sockets and no threads: waiting for one is a deadlock. Inside a running loop call it through
    `asyncio.to_thread`.

    Raises:
        Deadlock: nothing is ready and no timer is set; every task has been cancelled.
    """
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(coroutine)


class _JumpSelector(selectors.SelectSelector):
    """A selector that advances the time of its loop instead of waiting."""

    loop: "_VirtualLoop"

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout > 0:
            self.loop.advance()
        return []


class _VirtualLoop(asyncio.SelectorEventLoop):
    _scheduled: list[asyncio.TimerHandle]
    """The heap of timers of asyncio's own loops."""

    def __init__(self) -> None:
        self._now = 0.0
        selector = _JumpSelector()
        selector.loop = self
        super().__init__(selector)
        self._clock_resolution = math.ulp(0.0)
        self._sleepers: dict[float, list[asyncio.Future[None]]] = {}

    def time(self) -> float:
        return self._now

    async def sleep_until(self, moment: float) -> None:
        """Wait for a moment. All waits for one moment share a timer: many ranks do the same at the same time."""
        sleepers = self._sleepers.get(moment)
        if sleepers is None:
            sleepers = self._sleepers[moment] = []
            self.call_at(moment, self._wake, moment)
        sleepers.append(self.create_future())
        await sleepers[-1]

    def _wake(self, moment: float) -> None:
        for sleeper in self._sleepers.pop(moment):
            if not sleeper.done():
                sleeper.set_result(None)

    def advance(self) -> None:
        """Advance the time to the next timer.

        The loop passes its selector only a difference, capped at a day; its heap (`_scheduled`) has the exact moment.
        The loop runs timers due before now + resolution, so the resolution is set to one unit in the last place.
        """
        if not self._scheduled or math.isinf(self._scheduled[0].when()):
            raise Deadlock(_deadlock_message(asyncio.all_tasks(self)))
        self._now = self._scheduled[0].when()
        self._clock_resolution = math.ulp(self._now)


def _virtual_loop() -> _VirtualLoop:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, _VirtualLoop):
        raise RuntimeError("the virtual clock was read on a real event loop; start the program with run_virtual")
    return loop


def _deadlock_message(tasks: Iterable["asyncio.Task[Any]"]) -> str:
    stops = sorted(f"{task.get_name()} at {_innermost(task.get_coro())}" for task in tasks)
    last_line = [f"and {len(stops) - MAX_LISTED} more"] if len(stops) > MAX_LISTED else []
    waits = "\n  ".join([*stops[:MAX_LISTED], *last_line])
    return f"deadlock: every task waits and no timer is set (tasks: {len(stops)})\n  {waits}"


def _innermost(coroutine: Any) -> str:
    """The file and line of a coroutine's innermost await."""
    while getattr(getattr(coroutine, "cr_await", None), "cr_frame", None) is not None:
        coroutine = coroutine.cr_await
    frame = coroutine.cr_frame
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
