"""A simulated process: what dies at once, and what stops at once. The one rule: the dead do nothing, the frozen nothing
yet; so what a process would do passes through here.

Knows the running loop's time and tasks, nothing of networks.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from transports.errors import Closed
from transports.event_loop import settle

T = TypeVar("T")


class Process:
    """One life of a named process. It is also its clock: what sleeps by it dies and freezes with it.

    Attributes:
        dead, frozen: what has been done to it.
    """

    def __init__(self, name: str):
        self.name, self.dead, self.frozen = name, False, False
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._sleepers: dict[asyncio.Future[None], None] = {}
        self._held: list[Callable[[], None]] = []

    def now(self) -> float:
        """Seconds; a thawed process finds that time has passed."""
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        """Let this much time pass, and wait until the process is not frozen.

        Raises:
            Closed: the process is dead, or dies meanwhile.
        """
        if seconds > 0:
            await self._woken(self._loop.time() + seconds)
        else:
            await asyncio.sleep(0)
        self._check_alive()
        while self.frozen:
            await self._woken(None)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run this as a task of the process, which dies with it; the caller awaits it."""
        task = self._loop.create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def emit(self, act: Callable[[], None]) -> None:
        """Let something leave the process: now, at the thaw, or never."""
        if self.frozen:
            self._held.append(act)
        elif not self.dead:
            act()

    def kill(self) -> None:
        self.dead, self.frozen = True, False
        self._held.clear()
        for task in list(self._tasks):
            task.cancel()
        for sleeper in list(self._sleepers):
            settle(sleeper, self._closed())

    def freeze(self) -> None:
        self.frozen = not self.dead

    def thaw(self) -> None:
        """Go on: what would have left leaves, in order; who slept too long wakes."""
        if not self.frozen:
            return
        self.frozen = False
        held, self._held = self._held, []
        for act in held:
            act()
        for sleeper in list(self._sleepers):
            if self._sleepers[sleeper] is None:
                settle(sleeper)

    async def _woken(self, moment: float | None) -> None:
        """Wait for a moment, or, without one, for the thaw."""
        self._check_alive()
        sleeper = self._loop.create_future()
        timer = None if moment is None else self._loop.call_at(moment, settle, sleeper)
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
        return Closed(f"the process {self.name!r} is dead; whoever killed it ends what still runs in its name")
