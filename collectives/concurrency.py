"""Two coroutines at once that fail together. Knows nothing of what they do.

The one rule: a task is made only when there is something to wait for. Short sends end at their first step, and a task
for each would double the time of a short all-reduce (23 against 48 microseconds for 1 KiB over MPI at 2 ranks).
"""

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any

from transports import Nursery

Work = Coroutine[Any, Any, None]


async def together(first: Work, second: Work) -> None:
    """Run both to their end.

    Args:
        first: takes its first step at once, inside the caller's task, so up to there it may not ask which task it is
            in (as `asyncio.timeout` does).
    Raises:
        The error of whichever fails first, bare; by then the other one has been cancelled and has ended.
    """
    try:
        awaited = first.send(None)
    except StopIteration:
        await second
    except BaseException:
        second.close()
        raise
    else:
        await _both(_resumed(first, awaited), second)


async def _both(aside: Work, here: Work) -> None:
    async with Nursery() as tasks:
        tasks.create_task(aside)
        try:
            await here
        except BaseException:
            await asyncio.sleep(0)  # begin the task: cancelled before that, it would not run `aside`'s cleanup
            raise


async def _resumed(begun: Work, awaited: Any) -> None:
    """What is left of a coroutine that has been stepped as far as waiting for `awaited`."""
    await _steps(begun, awaited)


@types.coroutine
def _steps(begun: Work, awaited: Any) -> Generator[Any, None, None]:
    try:
        while True:
            try:
                yield awaited
            except BaseException as error:  # a cancellation, most often: it is the coroutine's, as in a task
                awaited = begun.throw(error)
            else:
                awaited = begun.send(None)
    except StopIteration:
        return
