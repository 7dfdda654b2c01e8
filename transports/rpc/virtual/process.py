"""A simulated process that can be killed and frozen.

A dead process does nothing; a frozen one does nothing until it is thawed. So all tasks, sleeps and sends of a process
go through this module, which uses the running loop's time and no network.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from transports.aio.futures import resolve
from transports.errors import Closed

T = TypeVar("T")


class Process:
    """A named process from its start to its kill. It is also a clock: its sleepers are killed and frozen with it.

    Attributes:
        dead, frozen: its state.
    """

    def __init__(self, name: str):
        self.name, self.dead, self.frozen = name, False, False
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._sleepers: dict[asyncio.Future[None], asyncio.TimerHandle | None] = {}
        self._held_calls: list[Callable[[], object]] = []

    def now(self) -> float:
        """Seconds on the loop's clock, which also runs while the process is frozen."""
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        """Sleep this many seconds, then wait until the process is not frozen.

        Raises:
            Closed: the process is dead, or is killed meanwhile.
        """
        if seconds > 0:
            await self._wait_until(self._loop.time() + seconds)
        else:
            await asyncio.sleep(0)
        self._check_alive()
        while self.frozen:
            await self._wait_until(None)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run this as a task of the process; a kill cancels it. The caller awaits the task."""
        task = self._loop.create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def emit(self, act: Callable[[], object]) -> None:
        """Run a send of the process: now; at the thaw if it is frozen; never if it is dead."""
        if self.frozen:
            self._held_calls.append(act)
        elif not self.dead:
            act()

    def kill(self) -> None:
        self.dead, self.frozen = True, False
        self._held_calls.clear()
        for task in list(self._tasks):
            task.cancel()
        for sleeper in list(self._sleepers):
            resolve(sleeper, self._closed())

    def freeze(self) -> None:
        self.frozen = not self.dead

    def thaw(self) -> None:
        """Resume: run the held sends in order, and wake the sleepers that are overdue."""
        if not self.frozen:
            return
        self.frozen = False
        held_calls, self._held_calls = self._held_calls, []
        for call in held_calls:
            call()
        for sleeper in list(self._sleepers):
            if self._sleepers[sleeper] is None:
                resolve(sleeper)

    async def _wait_until(self, time: float | None) -> None:
        """Wait until this time, or, if it is None, until the thaw."""
        self._check_alive()
        sleeper = self._loop.create_future()
        timer = None if time is None else self._loop.call_at(time, resolve, sleeper)
        self._sleepers[sleeper] = timer
        try:
            await sleeper
        finally:
            del self._sleepers[sleeper]
            if timer is not None:
                timer.cancel()

    def _check_alive(self) -> None:
        if self.dead:
            raise self._closed()

    def _closed(self) -> Closed:
        return Closed(f"the process {self.name!r} is dead; cancel its remaining tasks")
