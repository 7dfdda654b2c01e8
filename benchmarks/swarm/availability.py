"""A stand-in for 32 hours of 400 preemptible machines: when and how many join and leave.

The trace of SWARM's section 4.4 is not public; this one is steady for the first half and then declines in a straight
line. It follows from the seed alone, and has no stages.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Change(NamedTuple):
    """So many peers come (positive) or go at a moment, in seconds."""

    moment: float
    peers: int


@dataclass(frozen=True)
class Trace:
    """What it is like.

    Args:
        peers: at the beginning, and on average until half the time is over.
        last: peers at the end.
        hours: its length.
        events: an hour, on average, coming at random; each is a burst.
        burst: peers an event, on average, geometrically distributed.
        spread: how many peers too many or too few make the next event's direction certain.
    """

    peers: int = 400
    last: int = 128
    hours: float = 32.0
    events: float = 30.0
    burst: float = 3.0
    spread: float = 40.0

    @property
    def seconds(self) -> float:
        return 3600 * self.hours

    def scaled(self, times: int) -> "Trace":
        """As many times the peers, each as likely to come or go in an hour as before."""
        return Trace(
            self.peers * times, self.last * times, self.hours, self.events * times, self.burst, self.spread * times
        )

    def intended(self, moment: float) -> float:
        """How many there should be."""
        late = max(0.0, 2 * moment / self.seconds - 1)
        return self.peers + late * (self.last - self.peers)

    def changes(self, seed: int) -> Iterator[Change]:
        """All events in order."""
        draw, moment, there = random.Random(f"trace {seed}"), 0.0, self.peers
        while (moment := moment + draw.expovariate(self.events / 3600)) < self.seconds:
            size = 1
            while draw.random() > 1 / self.burst:
                size += 1
            wanting = (self.intended(moment) - there) / self.spread
            change = size if draw.uniform(-1, 1) < wanting else -min(size, there - 1)
            there += change
            yield Change(moment, change)
