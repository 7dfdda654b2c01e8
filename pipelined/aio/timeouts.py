"""Waiting for something no longer than a clock says. The rule: time is the given clock's, which may stop or die.

`asyncio.timeout` would count the loop's, which goes on while a simulated process is stopped.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from pipelined.aio.clock import Clock

T = TypeVar("T")


async def within(clock: Clock, seconds: float, work: Awaitable[T]) -> T:
    """What the work comes to. It is cancelled, and has ended, when this returns.

    Raises:
        TimeoutError: it did not come to anything in so many seconds.
    """
    doing, sleeping = asyncio.ensure_future(work), asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait([doing, sleeping], return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return await doing
        await sleeping
        raise TimeoutError(f"nothing came within {seconds:g} s")
    finally:
        doing.cancel()
        sleeping.cancel()
        await asyncio.gather(doing, sleeping, return_exceptions=True)
