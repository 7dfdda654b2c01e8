"""A time-out by a given clock, which may be stopped or dead.

`asyncio.timeout` counts the time of the loop, which runs on while a simulated process is stopped.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from pipelined.aio.clock import Clock

T = TypeVar("T")


async def with_timeout(clock: Clock, seconds: float, work: Awaitable[T]) -> T:
    """The result of the work, which has ended, cancelled if need be, when this returns.

    Raises:
        TimeoutError: there was no result after so many seconds.
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
