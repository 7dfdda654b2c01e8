"""Two coroutines run at once: when one fails, the other is cancelled.

A task is created only when a coroutine has to wait. Short sends end at their first step, and a task for each would
double the time of a short all-reduce (23 against 48 microseconds for 1 KiB over MPI at 2 ranks).
"""

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any

from transports import Nursery

Work = Coroutine[Any, Any, object]


async def run_both(first: Work, second: Work) -> None:
    """Run both to their end.

    Args:
        first: runs to its first wait at once, inside the caller's task, so up to there it must not use the current
            task (as `asyncio.timeout` does).
    Raises:
        The error of the coroutine that fails first, not in an exception group; the other one has been cancelled and
        has ended.
    """
    try:
        awaited = first.send(None)
    except StopIteration:
        await second
    except BaseException:
        second.close()
        raise
    else:
        await _run_beside(_continue(first, awaited), second)


async def _run_beside(child: Work, parent: Work) -> None:
    async with Nursery() as tasks:
        tasks.create_task(child)
        try:
            await parent
        except BaseException:
            await asyncio.sleep(0)  # start the task: cancelled before its start, it would not run its cleanup
            raise


async def _continue(started: Work, awaited: Any) -> None:
    """The rest of a coroutine that has run up to its wait for `awaited`."""
    await _steps(started, awaited)


@types.coroutine
def _steps(started: Work, awaited: Any) -> Generator[Any, None, None]:
    try:
        while True:
            try:
                yield awaited
            except BaseException as error:  # usually a cancellation: throw it into the coroutine, as a task does
                awaited = started.throw(error)
            else:
                awaited = started.send(None)
    except StopIteration:
        return
