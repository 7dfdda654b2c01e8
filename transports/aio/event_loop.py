"""The event loop for transports, with timers finer than a millisecond, and yielding to it."""

import asyncio
import ctypes
import selectors
import sys

from transports.aio.futures import resolve

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
    passed = loop.create_future()
    loop.call_at(loop.time(), resolve, passed)
    await passed
