"""Resolving futures: with a result, or with the error of a lost peer or an ended transport."""

import asyncio
from typing import Any


def resolve(future: asyncio.Future[Any], outcome: Any = None) -> None:
    """Set a future's result, or its exception if the outcome is one; a done or cancelled future stays as it is."""
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
        future.exception()  # else the loop would report an unread exception if the waiter was cancelled
    else:
        future.set_result(outcome)
