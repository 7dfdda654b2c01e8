"""Structured tasks: `Nursery`, which the transports use as well, and `beside`."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from transports import Nursery

__all__ = ["Nursery", "beside"]

T = TypeVar("T")


async def beside(work: Coroutine[Any, Any, T], *others: Coroutine[Any, Any, Any]) -> T:
    """Return the result of `work`; run the others at the same time, and cancel them when `work` ends.

    Raises:
        The first error of any of them.
    """
    async with Nursery() as tasks:
        running = [tasks.create_task(other) for other in others]
        result = await work
        for task in running:
            task.cancel()
    return result
