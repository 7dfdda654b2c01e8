"""Progress of slow work, and of waits, as lines of text: the first after a moment, then one every few seconds."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from transports import Nursery

MOMENT_S = 2.0
"""Seconds that work may take before its progress is shown."""
EVERY_S = 5.0
"""Seconds from one line to the next."""
Say = Callable[[str], None]
"""Prints a line."""


def say_nothing(line: str) -> None:
    """A `Say` where nothing is to be printed."""


class Progress:
    """The progress of one piece of work, which begins now.

    Args:
        now: the time in seconds, by any clock.
        say: prints a line.
    """

    def __init__(self, now: Callable[[], float], say: Say):
        self._now, self._say = now, say
        self._due_at = now() + MOMENT_S
        self._last_text = ""

    def show(self, text: str) -> None:
        """Print the text if it is due and differs from the last."""
        if self._now() >= self._due_at and text != self._last_text:
            self._due_at = self._now() + EVERY_S
            self._last_text = text
            self._say(text)


@asynccontextmanager
async def reported_wait(what: str, say: Say) -> AsyncIterator[None]:
    """A block that may wait: if it lasts MOMENT_S, log for what."""
    async with Nursery() as tasks:
        log = tasks.create_task(_say_later(f"waits for {what}", say))
        yield
        log.cancel()


async def _say_later(text: str, say: Say) -> None:
    await asyncio.sleep(MOMENT_S)
    say(text)
