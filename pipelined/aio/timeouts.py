"""A time-out on a given clock, which may be the clock of a simulated process that is stopped or dead.

`asyncio.timeout` uses the time of the event loop, which continues while a simulated process is stopped.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from pipelined.aio.clock import Clock

T = TypeVar("T")


async def with_timeout(clock: Clock, seconds: float, work: Awaitable[T]) -> T:
    """The result of the work. When this returns or raises, the work has ended or was cancelled.

    Raises:
        TimeoutError: there was no result after `seconds`.
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
