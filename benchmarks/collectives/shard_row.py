"""A row of the table of all-gathers, reduce-scatters and all-to-alls, and what is promised of it."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

FROM = 1 << 20
"""Bytes from which a ratio is promised."""
LEAST = {("own", 2): 0.7, ("allocated", 2): 1.0, ("own", 4): 1.0, ("allocated", 4): 1.0}
MIN_ALL_TO_ALL = {2: 0.5, 4: 1.0}
"""MPI's time over ours that is promised, by our arrays and ranks."""
HEAD = f"{'collective':15} {'bytes':>9} {'us':>9} {'algbw':>6} {'x MPI':22} {'least':>5}"


@dataclass(frozen=True)
class ShardRow:
    """One size of one collective.

    Args:
        arrays: ours, "own" or "allocated".
        pairs: our seconds and MPI's in the same rounds, of the slowest rank.
    """

    collective: str
    nbytes: int
    ranks: int
    arrays: str
    pairs: Sequence[tuple[float, float]]

    @property
    def least(self) -> float:
        """The ratio that is promised; 0: none."""
        if self.nbytes < FROM:
            return 0.0
        exchanged = self.collective == "all_to_all"
        return MIN_ALL_TO_ALL.get(self.ranks, 0.0) if exchanged else LEAST.get((self.arrays, self.ranks), 0.0)

    @property
    def ratios(self) -> list[float]:
        """MPI's time over ours in each round, the least first."""
        return sorted(theirs / ours for ours, theirs in self.pairs)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {**asdict(self), "ratio": statistics.median(self.ratios), "least": self.least}

    def line(self) -> str:
        """As a row of the table."""
        seconds, ratios = statistics.median(ours for ours, _ in self.pairs), self.ratios
        middle = statistics.median(ratios)
        spread = f"{middle:.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})".ljust(22)
        verdict = "  short" if middle < self.least else ""
        bandwidth = self.nbytes / seconds / 1e9
        head = f"{self.collective:15} {self.nbytes:9} {seconds * 1e6:9.1f} {bandwidth:6.2f}"
        return f"{head} {spread} {self.least:5.2f}{verdict}"
