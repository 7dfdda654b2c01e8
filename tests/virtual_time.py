"""Time that passes in a test: only on the virtual clock, where it takes none."""

import asyncio

from pipelined.aio.clock import VirtualClock


async def virtual_seconds(seconds, result=None):
    """Let this much virtual time pass.

    Raises:
        RuntimeError: the loop is on the machine's time. A test there waits for a condition.
    """
    VirtualClock().now()
    return await asyncio.sleep(seconds, result)
