"""The requests of one rank to which no reply has come yet, by the member that each is for."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Unanswered:
    """The requests that a rank waits for when it closes, and cancels when it ends."""

    def __init__(self) -> None:
        self._to = dict[asyncio.Future[Any], int]()

    def start(self, member: int, request: Coroutine[Any, Any, None]) -> "asyncio.Future[None]":
        """Start a request to a member."""
        task = asyncio.ensure_future(request)
        self._to[task] = member
        task.add_done_callback(self._ended)
        return task

    async def ended(self, member: int, request: Coroutine[Any, Any, None]) -> "asyncio.Future[None]":
        """A request to a member when it has ended, also by `cancel`. Cancelled: the request is, too."""
        task = self.start(member, request)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        return task

    async def wait(self) -> None:
        """Wait until all of them have ended."""
        if self._to:
            await asyncio.wait([*self._to])

    def cancel(self, member: int | None = None) -> None:
        """Cancel those to a member; None: to all."""
        for task in [task for task, to in self._to.items() if member in (None, to)]:
            task.cancel()

    def _ended(self, task: "asyncio.Future[None]") -> None:
        del self._to[task]
        if not task.cancelled():
            task.exception()  # else asyncio reports it where no caller waits for this copy of a message any more
