"""Structured tasks: `Nursery`, which the transports use as well, and `beside`."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from transports import Nursery

__all__ = ["Nursery", "beside"]

T = TypeVar("T")


async def beside(watch: Coroutine[Any, Any, Any], work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; run `watch` at the same time, and cancel it when `work` ends.

    Raises:
        The first error of either.
    """
    async with Nursery() as tasks:
        watching = tasks.create_task(watch)
        result = await work
        watching.cancel()
    return result
