"""How long the peers of one stage are expected to take to answer, from how long they took.

The rule: what counts is the whole answer time as the asker saw it, so that a peer is judged by its speed, its queue and
the way to it alike. Knows peers by their addresses and seconds; must not know who is picked, or why one is not.
"""

import math
import statistics
from typing import Literal, get_args

Pass = Literal["forward", "backward"]
"""What a peer is asked for."""

SMOOTHING = 0.1
"""Weight of the newest answer (SWARM, section 4.3)."""
BACKWARD = 2.5
"""Forwards that a backward counts for until one was measured; it computes forward again."""
LEAST_S = 1e-9
"""What a peer is expected to take at least, so that even one that answers at once has its turn and no more."""


class Average:
    """An exponential moving average without the bias of its first value: after n values their weights add up to 1.

    Args:
        smoothing: weight of the newest value, in (0, 1].
    """

    def __init__(self, smoothing: float):
        if not 0 < smoothing <= 1:
            raise ValueError(f"the smoothing is no share of one (it is {smoothing}); take one in (0, 1]")
        self._smoothing, self._sum, self._weight = smoothing, 0.0, 0.0

    def add(self, value: float) -> None:
        """Take in the newest value."""
        keep = 1 - self._smoothing
        self._sum = keep * self._sum + self._smoothing * value
        self._weight = keep * self._weight + self._smoothing

    @property
    def value(self) -> float | None:
        """The average; None before the first value."""
        return self._sum / self._weight if self._weight else None


class AnswerTimes:
    """The answer times of one stage's peers, forward and backward apart.

    Source: SWARM, Appendix C, Algorithm 1, lines 2, 8 and 30; a newcomer's estimate is our own.
    """

    def __init__(self) -> None:
        self._averages: dict[str, dict[Pass, Average]] = {}

    def add(self, peer: str) -> None:
        """Begin to keep a peer's times; nothing is measured yet. What is known of one already kept stays."""
        self._averages.setdefault(peer, {each: Average(SMOOTHING) for each in get_args(Pass)})

    def remove(self, peer: str) -> None:
        """Forget a peer's times."""
        self._averages.pop(peer, None)

    def observe(self, peer: str, which: Pass, seconds: float) -> None:
        """An answer came after so many seconds.

        Raises:
            ValueError: the seconds are negative or not finite; nothing is changed.
        """
        if not 0 <= seconds < math.inf:
            raise ValueError(f"{peer} cannot have answered after {seconds} s; measure with a monotonic clock")
        self._averages[peer][which].add(seconds)

    def measured(self, peer: str, which: Pass) -> float | None:
        """Seconds by the peer's own answers; of the other pass, rescaled, where it gave none to this one; else None."""
        own = self._averages[peer]
        other: Pass = "backward" if which == "forward" else "forward"
        if (seconds := own[which].value) is not None:
            return seconds
        if (seconds := own[other].value) is not None:
            return seconds * (BACKWARD if which == "backward" else 1 / BACKWARD)
        return None

    def expected(self, peer: str, which: Pass) -> float:
        """Seconds that an answer will take: as measured, else the median of the stage, else next to nothing.

        Where nobody has answered yet all peers are alike, so any figure does, and a small one is soon outweighed.
        """
        seconds = self.measured(peer, which)
        if seconds is None:
            known = [each for each in (self.measured(peer, which) for peer in self._averages) if each is not None]
            seconds = statistics.median(known) if known else 0.0
        return max(seconds, LEAST_S)
