"""Progress of slow work as lines of text: the first after a moment, then one every few seconds."""

from collections.abc import Callable

MOMENT_S = 2.0
"""Seconds that work may take before its progress is shown."""
EVERY_S = 5.0
"""Seconds from one line to the next."""


class Progress:
    """The progress of one piece of work, which begins now.

    Args:
        now: the time in seconds, by any clock.
        say: prints a line.
    """

    def __init__(self, now: Callable[[], float], say: Callable[[str], None]):
        self._now, self._say = now, say
        self._due, self._last = now() + MOMENT_S, ""

    def show(self, text: str) -> None:
        """Print the text if it is due and differs from the last."""
        if self._now() >= self._due and text != self._last:
            self._due, self._last = self._now() + EVERY_S, text
            self._say(text)
