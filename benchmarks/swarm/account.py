"""The throughput of a swarm as a share of the possible one, by five minutes: a ratio of sums."""

from dataclasses import dataclass, field

HOUR = 3600.0
BIN_S = 300.0
BINS = round(HOUR / BIN_S)
"""In an hour."""


@dataclass
class Account:
    """What was done, and what peers/stages at every moment would have done, in peer-seconds; by `BIN_S`."""

    done: list[float] = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    moves: int = 0

    def add(self, start: float, end: float, rate: float, best: float) -> None:
        """Both rates held from start to end."""
        while start < end:
            at = int(start // BIN_S)
            until = min(end, (at + 1) * BIN_S)
            if len(self.done) <= at:
                self.done += [0.0] * (at + 1 - len(self.done))
                self.best += [0.0] * (at + 1 - len(self.best))
            self.done[at] += rate * (until - start)
            self.best[at] += best * (until - start)
            start = until

    def percent(self, hours: slice = slice(None)) -> float:
        """Of the optimum, over these hours."""
        first, last, _ = hours.indices(-(-len(self.done) // BINS))
        within = slice(first * BINS, last * BINS)
        return 100 * sum(self.done[within]) / sum(self.best[within])
