"""Telling how far something is that takes its time: after a moment, and then every few seconds."""

from collections.abc import Callable

MOMENT_S = 2.0
"""How long something may take that nobody is told of."""
EVERY_S = 5.0
"""From one word to the next."""


class Progress:
    """One thing that goes on.

    Args:
        now: seconds, by any clock; it begins now.
        say: told how much is done.
    """

    def __init__(self, now: Callable[[], float], say: Callable[[str], None]):
        self._now, self._say = now, say
        self._due, self._last = now() + MOMENT_S, ""

    def tell(self, text: str) -> None:
        """Say so, if it is time for it and news."""
        if self._now() >= self._due and text != self._last:
            self._due, self._last = self._now() + EVERY_S, text
            self._say(text)
