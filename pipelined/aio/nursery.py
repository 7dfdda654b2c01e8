"""Structured tasks: `Nursery`, which the transports use as well, and one piece of work beside another."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from transports import Nursery

__all__ = ["Nursery", "beside"]

T = TypeVar("T")


async def beside(watch: Coroutine[Any, Any, Any], work: Coroutine[Any, Any, T]) -> T:
    """What a piece of work comes to; something else goes on meanwhile, and is cancelled at its end.

    Raises:
        The first error of either.
    """
    async with Nursery() as tasks:
        watching = tasks.create_task(watch)
        result = await work
        watching.cancel()
    return result
