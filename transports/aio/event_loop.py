"""The event loop for transports, with timers finer than a millisecond; yielding to it, its task, resolving futures."""

import asyncio
import ctypes
import selectors
import sys
from typing import Any

PR_SET_TIMERSLACK = 29


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop over select(2), with timers exact to the microsecond; epoll rounds them up to the next millisecond.

    A polling transport sleeps for 0.1 ms at a time; on epoll each such nap takes 1 ms. Linux may wake a sleeping thread
    up to 50 µs late to save power; this call sets that slack to 1 ns for the calling thread, which must run the loop.
    select limits the process to 1,024 file descriptors. Use: `asyncio.Runner(loop_factory=new_event_loop)`.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(1))
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


async def yield_to_timers() -> None:
    """Yield until all callbacks and timers due now have run; `sleep(0)` would resume before due timers."""
    loop = asyncio.get_running_loop()
    due = loop.create_future()
    loop.call_at(loop.time(), resolve, due)
    await due


def this_task() -> asyncio.Task[Any]:
    """The running task.

    Raises:
        RuntimeError: no task is running: this is a callback, or another thread.
    """
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("no task is running here; call this from a coroutine")
    return task


def resolve(future: asyncio.Future[Any], outcome: Any = None) -> None:
    """Set a future's result, or its exception if the outcome is one; a done or cancelled future stays as it is."""
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
        future.exception()  # else the loop would report an unread exception if the waiter was cancelled
    else:
        future.set_result(outcome)
