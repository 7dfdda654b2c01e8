"""The event loop to run transports on. The one rule: its timers are finer than a millisecond."""

import asyncio
import selectors


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop over select(2), whose timers are exact to the microsecond; epoll's round up to the next millisecond.

    A transport that polls sleeps for a tenth of a millisecond at a time, and on epoll each such nap takes a whole one.
    select's price is a cap of 1,024 file descriptors. Use it as `asyncio.Runner(loop_factory=new_event_loop)`.
    """
    return asyncio.SelectorEventLoop(selectors.SelectSelector())
