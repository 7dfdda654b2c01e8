"""Polls the status of a system: the directory is read repeatedly; while it does not reply, the last status stays."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from pipelined.membership.directory import CutOff, Directory, Snapshot

S = TypeVar("S")
DIRECTORY_TIMEOUT_S = 2.0
"""Seconds that a later poll waits for the directory."""


async def poll_status(
    directory: Directory, make_status: Callable[[Snapshot], Awaitable[S]], every_s: float
) -> AsyncIterator[tuple[S, float]]:
    """Read the directory repeatedly; yields the last status, and its age in seconds.

    Args:
        make_status: makes the status of what was read.
        every_s: seconds from the end of one poll to the next.
    Raises:
        CutOff: the directory did not reply to the first request.
    """
    clock = asyncio.get_running_loop().time
    latest = await make_status(await directory.read())
    read_at = clock()
    while True:
        yield latest, clock() - read_at
        await asyncio.sleep(every_s)
        with suppress(CutOff, TimeoutError):
            async with asyncio.timeout(DIRECTORY_TIMEOUT_S):
                snapshot = await directory.read()
            latest = await make_status(snapshot)
            read_at = clock()
