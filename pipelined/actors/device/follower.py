"""The pieces of work that a parent has begun and not waited for: one task follows them all until none is left."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from pipelined.actors.device.work import DeviceWork
from transports import Nursery

PATIENCE_S = 3.0
"""Seconds that a cancelled rank waits for its running work before it sends its peers the reason for its exit."""

Then = Callable[[Any, float, float], None]
"""What is called with the result of a piece, its start and end."""


class Follower:
    """Follows pieces in the order of their queue, as a child of a nursery; a task for each piece would cost 30 µs.

    Args:
        parent: fails with the first error of a piece; waits for the pieces when its block ends.
        withdraw: takes a piece out of the queue; False if its work has begun.

    Attributes:
        over: no further piece can be followed, as the parent does not wait any more.
    """

    def __init__(self, parent: Nursery, withdraw: Callable[[DeviceWork], bool]):
        self.parent, self.over = parent, False
        self._withdraw, self._pieces, self._empty = withdraw, deque[tuple[DeviceWork, Then]](), asyncio.Event()
        parent.create_task(self._run()).add_done_callback(self._give_up)

    def follow(self, piece: DeviceWork, then: Then) -> None:
        """Call `then` on the loop with the result of a piece, its start and end, unless the parent is cancelled."""
        piece.then = self._on_piece_ended  # a function of this piece would refer to it, and keep what it holds
        self._pieces.append((piece, then))

    def _on_piece_ended(self) -> None:
        """The first piece has ended; one that ran on after the parent's cancellation has no successor."""
        piece, then = self._pieces.popleft()
        if not self.over:
            try:
                then(piece.result(), piece.start, piece.end)
            except BaseException as error:
                self.parent.create_task(_raise(error))
        if not self._pieces:
            self.over = True
            self._empty.set()

    async def _run(self) -> None:
        """Wait for all pieces; if cancelled, withdraw those that wait, and wait a while for one that runs."""
        try:
            await self._empty.wait()
        except asyncio.CancelledError:
            self._give_up()
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_S if self._pieces else 0):
                    await self._empty.wait()
            raise

    def _give_up(self, ended: "asyncio.Task[None] | None" = None) -> None:
        self.over = True
        for begun in reversed(list(self._pieces)):
            if self._withdraw(begun[0]):
                self._pieces.remove(begun)
        if not self._pieces:
            self._empty.set()


async def _raise(error: BaseException) -> NoReturn:
    try:
        raise error
    finally:
        del error  # else it and this frame refer to each other
