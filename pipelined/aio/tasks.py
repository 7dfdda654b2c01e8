"""Tasks that end before their parent goes on: beside its work, the first of several, cancelled, or timed out.

And a notifier, by which tasks wait for a change that another one announces; and waits that spread work over time.
"""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from pipelined.aio.clock import Clock
from transports import Nursery

T = TypeVar("T")


async def beside(work: Coroutine[Any, Any, T], *other_works: Coroutine[Any, Any, Any]) -> T:
    """Return the result of `work`; run the others at the same time, and cancel them when `work` ends.

    Raises:
        The first error of any of them.
    """
    async with Nursery() as tasks:
        tasks_beside = [tasks.create_task(work_beside) for work_beside in other_works]
        result = await work
        for task in tasks_beside:
            task.cancel()
    return result


async def first_of(*works: Coroutine[Any, Any, T]) -> T:
    """Return the result of the first to end (of those that end at once, the first named); cancel the others.

    Raises:
        The first error of any of them.
    """
    async with Nursery() as tasks:
        running_tasks = [tasks.create_task(work) for work in works]
        await asyncio.wait(running_tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in running_tasks:
            task.cancel()
    return next(task.result() for task in running_tasks if not task.cancelled())


async def cancel_and_wait(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel these tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def with_timeout(clock: Clock, seconds: float, work: Awaitable[T]) -> T:
    """The result of the work, which runs in this task. When this returns or raises, it has ended or was cancelled.

    `asyncio.timeout` measures the time of the event loop; this measures that of a process: one that was frozen
    (`transports.rpc.virtual`) or suspended (`RunningTimeClock`) meanwhile does not give up on others for it.

    Raises:
        TimeoutError: there was no result after `seconds`. The clock's error, if its process ends meanwhile.
    """
    try:
        async with asyncio.timeout(None) as scope:
            alarm = asyncio.create_task(_expire(scope, clock, seconds))
            try:
                return await work
            finally:
                alarm.cancel()
    except TimeoutError:
        if not scope.expired():
            raise
        if error := alarm.result():
            raise error from None
        raise TimeoutError(f"nothing came within {seconds:g} s") from None


async def _expire(scope: asyncio.Timeout, clock: Clock, seconds: float) -> Exception | None:
    """End the scope after this time, or when the clock fails; returns the clock's error."""
    failure = None
    try:
        await clock.sleep(seconds)
    except Exception as error:
        failure = error
    scope.reschedule(asyncio.get_running_loop().time())
    return failure


class Notifier:
    """Wakes all waiting coroutines at once. A call of `wait` after `notify_all` waits for the next one.

    Notifications are not stored: check the condition first, then call `wait`, without an await in between. Waiting
    begins at the call of `wait`, not at the await, so a notification between the two is not missed.
    """

    def __init__(self) -> None:
        self._next_notification: asyncio.Future[None] | None = None

    def wait(self) -> "asyncio.Future[None]":
        """A future that completes at the next notification."""
        if self._next_notification is None:
            self._next_notification = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._next_notification)

    def notify_all(self) -> None:
        """Wake all waiting coroutines."""
        if self._next_notification is not None:
            self._next_notification.set_result(None)
            self._next_notification = None


class Spread:
    """Spreads work evenly over a time, so that it leaves room for what is urgent.

    Args:
        seconds: from now until the last part of the work; 0: nothing waits.
    """

    def __init__(self, clock: Clock, seconds: float = 0.0):
        self._clock = clock
        self._seconds = seconds
        self._began = clock.now()

    async def wait_for(self, share: float) -> None:
        """Wait until this share of the time is over."""
        seconds_left = self._began + share * self._seconds - self._clock.now()
        if seconds_left > 0:
            await self._clock.sleep(seconds_left)
