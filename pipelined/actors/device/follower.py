"""The computations that a parent has begun and not waited for: one task follows them all until none is left."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn, Optional

from pipelined.actors.device.work import DeviceWork
from transports import Nursery

PATIENCE_S = 3.0
"""Seconds that a cancelled rank waits for its running work before it sends its peers the reason for its exit."""


@dataclass(eq=False, slots=True)
class FollowedWork(DeviceWork):
    """A computation that is queued without a wait for its end; a subclass says what follows.

    Attributes:
        follower: the one that follows it.
    """

    follower: Optional["Follower"] = None

    def finish(self, result: Any, start: float, end: float) -> None:
        """Go on with the result, on the loop, in the order of the queue; not called if the work fails."""

    def reported(self) -> None:
        follower, self.follower = self.follower, None
        if follower is not None:
            follower.finish_first()


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
        self._begun = deque[FollowedWork]()
        self._empty = asyncio.Event()
        parent.create_task(self._run()).add_done_callback(self._give_up)

    def follow(self, work: FollowedWork) -> None:
        """Finish a computation at its end, unless it failed or the parent is cancelled."""
        work.follower = self
        self._begun.append(work)

    def finish_first(self) -> None:
        """Finish the first computation, which has ended; after the parent's cancellation nothing follows."""
        work = self._begun.popleft()
        if not self.over:
            try:
                work.finish(work.result(), work.start, work.end)
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
        for work in reversed(list(self._begun)):
            if self._withdraw(work):
                self._begun.remove(work)
        if not self._begun:
            self._empty.set()


async def _raise(error: BaseException) -> NoReturn:
    try:
        raise error
    finally:
        del error  # else it and this frame refer to each other
