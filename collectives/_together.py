"""Two coroutines at once that fail together. Knows nothing else."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def together(first: Coroutine[Any, Any, None], second: Coroutine[Any, Any, None]) -> None:
    """Run both to their end; `first` takes its first step before anything is suspended.

    Raises:
        The error of whichever fails first, bare; by then the other one has been cancelled and has ended.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(second)
            await first
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
