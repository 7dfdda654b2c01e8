"""Work that runs an event loop, from a thread whose own loop is running already, as a notebook's is."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


def outside_of_a_loop(work: Callable[[], T]) -> T:
    """Do work that runs an event loop: in a thread of its own where a loop is running already.

    Raises:
        KeyboardInterrupt: Ctrl-C; what runs in an `interruptible` was cancelled, and the thread has ended.
    """
    running_loop = None
    with suppress(RuntimeError):  # no loop is running
        running_loop = asyncio.get_running_loop()
    if running_loop is None:
        return work()
    future = Future[T]()
    thread = _LoopThread(work, future)
    try:
        thread.start()
        return future.result()
    except KeyboardInterrupt:
        thread.interrupt()
        raise
    finally:
        if thread.ident is not None:  # it was started
            thread.join()


async def interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Await this, the only work of an event loop; Ctrl-C cancels it in the thread of `outside_of_a_loop`, too."""
    if isinstance(thread := threading.current_thread(), _LoopThread):
        thread.enter(asyncio.get_running_loop(), asyncio.current_task())
    return await work


class _LoopThread(threading.Thread):
    """A thread whose work runs event loops, one after another. future: its result."""

    def __init__(self, work: Callable[[], T], future: "Future[T]"):
        super().__init__(name="pipelined", target=_resolve, args=(work, future))
        self._cancel: Callable[[], object] | None = None
        self._interrupted = False

    def enter(self, loop: asyncio.AbstractEventLoop, task: "asyncio.Task[Any] | None") -> None:
        """Let this task of its loop be cancelled by `interrupt`, also by an earlier one."""
        assert task is not None
        self._cancel = partial(loop.call_soon_threadsafe, task.cancel)
        if self._interrupted:
            task.cancel()

    def interrupt(self) -> None:
        """Cancel the task that it runs, and those that it begins later."""
        self._interrupted = True
        if self._cancel is not None:
            with suppress(RuntimeError):  # that loop is closed
                self._cancel()


def _resolve(work: Callable[[], T], future: "Future[T]") -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)
