"""The event loop to run transports on, with timers finer than a millisecond; yielding to it, and resolving futures."""

import asyncio
import ctypes
import selectors
import sys

PR_SET_TIMERSLACK = 29


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop over select(2), whose timers are exact to the microsecond; epoll's round up to the next millisecond.

    A transport that polls sleeps for a tenth of a millisecond at a time, and on epoll each such nap takes a whole one.
    Linux wakes a sleeper up to 50 µs late to save power; the calling thread, which is to run the loop, gives that up.
    select's price is a cap of 1,024 file descriptors. Use it as `asyncio.Runner(loop_factory=new_event_loop)`.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(1))
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


async def step_aside() -> None:
    """Go on after all that is due by now, timers too; after a bare `sleep(0)` the caller would go before them again."""
    loop = asyncio.get_running_loop()
    turn = loop.create_future()
    loop.call_at(loop.time(), _begin, turn)
    await turn


def _begin(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


def settle(freed: asyncio.Future[None], error: BaseException | None = None) -> None:
    """Resolve the future by which a sender learns that its memory is free, or that its message will not be sent.

    A done future stays as it is, a cancelled one too: the sender no longer waits for it.
    """
    if freed.done():
        return
    if error is None:
        freed.set_result(None)
    else:
        freed.set_exception(error)
        freed.exception()  # a sender that was cancelled does not await it, and the loop would report that
