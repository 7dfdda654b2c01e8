"""The computations that a parent has begun and not waited for: one task follows them all until none is left."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from pipelined.actors.device.work import DeviceWork, OnEnded
from transports import Nursery

PATIENCE_S = 3.0
"""Seconds that a cancelled rank waits for its running work before it sends its peers the reason for its exit."""


class Follower:
    """Follows computations in the order of their queue, as a child of a nursery; a task for each would cost 30 µs.

    Args:
        parent: fails with the first error of a computation; waits for the computations when its block ends.
        withdraw: takes a computation out of the queue; False if its work has begun.

    Attributes:
        over: no further computation can be followed, as the parent does not wait any more.
    """

    def __init__(self, parent: Nursery, withdraw: Callable[[DeviceWork], bool]):
        self.parent, self.over = parent, False
        self._withdraw = withdraw
        self._begun = deque[tuple[DeviceWork, OnEnded]]()
        self._empty = asyncio.Event()
        parent.create_task(self._run()).add_done_callback(self._give_up)

    def follow(self, work: DeviceWork, on_ended: OnEnded) -> None:
        """Call `on_ended` at the end of a computation, unless it failed or the parent is cancelled."""
        work.wake = self._on_work_ended  # a function of this one would keep what it holds
        self._begun.append((work, on_ended))

    def _on_work_ended(self) -> None:
        """The first computation has ended; one that ran on after the parent's cancellation has no successor."""
        work, on_ended = self._begun.popleft()
        if not self.over:
            try:
                on_ended(work.result(), work.start, work.end)
            except BaseException as error:
                self.parent.create_task(_raise(error))
        if not self._begun:
            self.over = True
            self._empty.set()

    async def _run(self) -> None:
        """Wait for all computations; if cancelled, withdraw those that wait, and wait a while for one that runs."""
        try:
            await self._empty.wait()
        except asyncio.CancelledError:
            self._give_up()
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_S if self._begun else 0):
                    await self._empty.wait()
            raise

    def _give_up(self, ended: "asyncio.Task[None] | None" = None) -> None:
        self.over = True
        for each in reversed(list(self._begun)):
            if self._withdraw(each[0]):
                self._begun.remove(each)
        if not self._begun:
            self._empty.set()


async def _raise(error: BaseException) -> NoReturn:
    try:
        raise error
    finally:
        del error  # else it and this frame refer to each other
