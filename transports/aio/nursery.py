"""A nursery: child tasks that end before their parent's block ends; the block raises the first error of any of them.

The nursery never loses a cancellation from outside, and never adds one. `asyncio.TaskGroup` of Python 3.11 and 3.12
does both if a child fails while its parent waits or is being cancelled: it raises only the child's error, so a parent
that catches the error never sees its cancellation; or it leaves the parent marked as cancelled.
"""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class Nursery:
    """An async context. A child that fails cancels its siblings and the block.

    Leaving the block waits for all children. A child created after a failure is cancelled at its first step.

    Raises:
        CancelledError: the parent was cancelled, even if a child failed too. Else the first error of the block or a
            child, not wrapped in an exception group.
    """

    def __init__(self) -> None:
        self._tasks = set[asyncio.Task[Any]]()
        self._error: BaseException | None = None
        self._failed = self._leaving = self._cancelled = self._closed = False
        self._empty: asyncio.Future[None] | None = None

    async def __aenter__(self) -> "Nursery":
        self._parent = this_task()
        self._earlier_cancellations = self._parent.cancelling()
        return self

    def create_task(self, work: Coroutine[Any, Any, T], name: str | None = None) -> "asyncio.Task[T]":
        """Run a coroutine as a child.

        Raises:
            RuntimeError: the block has ended; the coroutine is closed.
        """
        if self._closed:
            work.close()
            raise RuntimeError(f"the block that should be the parent of {work!r} has ended; start it inside")
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        if self._failed:
            task.cancel()
        return task

    async def __aexit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._leaving = True
        if self._cancelled:
            self._parent.uncancel()
        if error is not None:
            self._fail(None if kind is asyncio.CancelledError else error)
        while self._tasks:
            self._empty = asyncio.get_running_loop().create_future()
            try:
                await self._empty
            except asyncio.CancelledError:
                self._fail(None)
        self._closed = True
        if self._parent.cancelling() > self._earlier_cancellations:
            raise asyncio.CancelledError
        if self._error is not None and self._error is not error:
            _raise(self._error)

    def _on_done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._fail(task.exception())
        if not self._tasks and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def _fail(self, error: BaseException | None) -> None:
        """End the children, and the block if it still runs."""
        self._error = self._error or error
        self._failed = True
        for task in self._tasks:
            task.cancel()
        if not self._leaving and not self._cancelled:
            self._cancelled = True
            self._parent.cancel()


def _raise(error: BaseException) -> None:
    """Raise a child's error with its own context, without the parent's cancellation in it."""
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context


def this_task() -> asyncio.Task[Any]:
    """The running task.

    Raises:
        RuntimeError: no task is running: this is a callback, or another thread.
    """
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("no task is running here; call this from a coroutine")
    return task
