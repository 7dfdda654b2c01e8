"""Time, twice: the real clock, and a virtual one that jumps from timer to timer.

The rule: nothing in the project reads the time or sleeps except through the clock it was given, so what runs in hours
on the one runs in moments, and the same way each time, on the other. This file knows event loops; it must not know
what is timed.
"""

import asyncio
import math
import selectors
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
MOST_NAMED = 16
"""Tasks that a `Deadlock` names."""


class Clock(Protocol):
    """What everything that waits is given."""

    def now(self) -> float:
        """Seconds; only differences mean anything."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let this much time pass; 0 lets everyone else run once."""
        ...


class RealClock:
    """The machine's clock. An epoll loop rounds its sleeps up to the next millisecond; a select loop does not."""

    def now(self) -> float:
        return time.perf_counter()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class VirtualClock:
    """The clock of `run_virtual`; time passes only when nobody has anything else to do.

    Raises:
        RuntimeError: from every method, outside `run_virtual`.
    """

    def now(self) -> float:
        return _virtual_loop().time()

    async def sleep(self, seconds: float) -> None:
        loop = _virtual_loop()
        await (loop.reach(loop.time() + seconds) if seconds > 0 else asyncio.sleep(0))

    def call_at(self, moment: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call back at a moment, unless the handle that is returned is cancelled before."""
        return _virtual_loop().call_at(moment, callback)


class Deadlock(RuntimeError):
    """Everybody waits and no timer will ever wake anyone; the message says who waits and where."""


def run_virtual(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own with virtual time from 0, and return its result.

    Sockets and threads are not served there: waiting for one is a deadlock. Inside a running loop call it through
    `asyncio.to_thread`.

    Raises:
        Deadlock: nothing is ready and no timer is set; every task has been cancelled.
    """
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(coroutine)


class _Jump(selectors.SelectSelector):
    """A selector that lets its loop's time pass instead of waiting."""

    loop: "_VirtualLoop"

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout > 0:
            self.loop.jump()
        return []


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._now, selector = 0.0, _Jump()
        selector.loop = self
        super().__init__(selector)
        self._clock_resolution = math.ulp(0.0)
        self._sleepers: dict[float, list[asyncio.Future[None]]] = {}

    def time(self) -> float:
        return self._now

    async def reach(self, moment: float) -> None:
        """Wait for a moment. All who wait for the same one share a timer: many ranks do the same at the same time."""
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

    def jump(self) -> None:
        """Go to the next timer.

        The loop hands its selector a difference, capped at a day; its heap (`_scheduled`) has the exact moment. It
        runs timers due before now + resolution, so one unit in the last place is the resolution that takes this one.
        """
        if not self._scheduled or math.isinf(self._scheduled[0].when()):
            raise Deadlock(_waiting(asyncio.all_tasks(self)))
        self._now = self._scheduled[0].when()
        self._clock_resolution = math.ulp(self._now)


def _virtual_loop() -> _VirtualLoop:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, _VirtualLoop):
        raise RuntimeError("the virtual clock was read on a real event loop; start the program with run_virtual")
    return loop


def _waiting(tasks: Iterable["asyncio.Task[Any]"]) -> str:
    places = sorted(f"{task.get_name()} at {_innermost(task.get_coro())}" for task in tasks)
    more = [f"and {len(places) - MOST_NAMED} more"] if len(places) > MOST_NAMED else []
    waits = "\n  ".join([*places[:MOST_NAMED], *more])
    return f"deadlock: every task waits and no timer is set (tasks: {len(places)})\n  {waits}"


def _innermost(coroutine: Any) -> str:
    """Where a coroutine's deepest await stands."""
    while getattr(getattr(coroutine, "cr_await", None), "cr_frame", None) is not None:
        coroutine = coroutine.cr_await
    frame = coroutine.cr_frame
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
