"""The requests of one rank to which no reply has come yet, by the seat of the holder that each is for."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from transports.stream.sockets import CLOSE_S


class PendingRequests:
    """The requests that a rank waits for when it closes, and cancels when it ends.

    Args:
        activity_with: of the holder of a seat; see `Endpoint.activity_with`.
    """

    def __init__(self, activity_with: Callable[[int], float]):
        self._activity_with = activity_with
        self._to = dict[asyncio.Future[Any], int]()

    @property
    def activity(self) -> float:
        """A number that changes while bytes pass to or from the holders to which requests are pending."""
        return sum(map(self._activity_with, {*self._to.values()}))

    def start(self, seat: int, request: Coroutine[Any, Any, None]) -> "asyncio.Future[None]":
        """Start a request to a holder."""
        task = asyncio.ensure_future(request)
        self._to[task] = seat
        task.add_done_callback(self._on_ended)
        return task

    async def run(self, seat: int, request: Coroutine[Any, Any, None]) -> "asyncio.Future[None]":
        """Run a request to a holder. Returns its task when it has ended or `cancel` has cancelled it.

        Cancelled: the request is cancelled, too.
        """
        task = self.start(seat, request)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        return task

    async def wait(self) -> None:
        """Wait for all requests. Give up after `CLOSE_S` seconds in which none ends and no byte moves."""
        waiting = {*self._to}
        done = set[asyncio.Future[Any]]()
        before = -1.0
        while waiting and (done or before != self.activity):
            before = self.activity
            done, waiting = await asyncio.wait(waiting, timeout=CLOSE_S)

    def cancel(self, seat: int | None = None) -> None:
        """Cancel the requests to a holder; None: to all holders."""
        for task in [task for task, to in self._to.items() if seat in (None, to)]:
            task.cancel()

    def _on_ended(self, task: "asyncio.Future[None]") -> None:
        del self._to[task]
        if not task.cancelled():
            task.exception()  # else asyncio reports it where no caller waits for this copy of a message any more
