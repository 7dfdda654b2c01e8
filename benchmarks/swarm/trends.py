"""Figure 6 of SWARM: the effect of more stages on a swarm that shrinks, and the paper's statements about it, as checks.

A trend holds only if it holds for the curves averaged over seeds, at every number of stages.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import mean
from typing import Any, NamedTuple

from benchmarks.swarm.account import BINS, Account

PARTS = 8
"""Of the trace, in the printed table; four hours each of 32."""
AFTER_H = 2
"""Hours after the lowest point in which something may be regained."""
AHEAD_PERCENT = 5.0
"""Of the time, at most, in which the unbalanced swarm may do better; the paper saw 4.5."""


@dataclass(frozen=True)
class Curve:
    """Throughput over time as percent of the optimum, averaged over seeds.

    Args:
        rebalanced: every 300 seconds, or never.
        overall, parts: percent, of the whole and of each eighth of the trace.
        slope: points an hour, of the straight line through the hours.
        rises: of 31 times, how often an hour was better than the one before.
        regained: of what had been lost in the worst five minutes of the first half, the percent that the two hours
            after them won back.
        ahead: percent of the time in which this swarm did better than the other one on the same trace.
        moves, seconds: a run; of one core, in the longest run.
    """

    stages: int
    rebalanced: bool
    overall: float
    parts: tuple[float, ...]
    slope: float
    rises: int
    regained: float
    ahead: float
    moves: float
    seconds: float

    def line(self) -> str:
        parts = " ".join(f"{part:5.1f}" for part in self.parts)
        shape = f"{self.slope:6.2f} {self.rises:5} {self.regained:8.0f} {self.ahead:6.1f}"
        arm = "T = 300 s" if self.rebalanced else "none"
        return f"{self.stages:6} {arm:9} {self.overall:7.1f}  {parts}  {shape} {self.moves:6.0f} {self.seconds:6.1f}"


CURVE_HEAD = (
    f"{'stages':>6} {'arm':9} {'overall':7}  {'by eighths of the trace':{6 * PARTS - 1}}  "
    f"{'slope':6} rises regained  ahead  moves run, s"
)


class Trend(NamedTuple):
    """What the paper says (section 4.4), and whether it is so here."""

    claim: str
    holds: bool

    def line(self) -> str:
        return f"{'yes' if self.holds else 'NO ':3}  {self.claim}"


def curve(stages: int, rebalanced: bool, runs: Sequence[Account], others: Sequence[Account], seconds: float) -> Curve:
    """What runs of several seeds show.

    Args:
        others: of the same seeds, done the other way.
        seconds: of one core, that the longest of the runs took.
    """
    hours = _percents(runs, BINS)
    middle = mean(range(len(hours)))
    deviations = [hour - middle for hour in range(len(hours))]
    slope = sum(x * y for x, y in zip(deviations, hours, strict=True)) / sum(x * x for x in deviations)
    return Curve(
        stages,
        rebalanced,
        overall=_percents(runs, len(runs[0].done))[0],
        parts=tuple(_percents(runs, len(runs[0].done) // PARTS)),
        slope=slope,
        rises=sum(later > earlier for earlier, later in pairwise(hours)),
        regained=mean(map(_regained, runs)),
        ahead=mean(_ahead(run, other) for run, other in zip(runs, others, strict=True)),
        moves=mean(run.moves for run in runs),
        seconds=seconds,
    )


def trends(curves: Sequence[Curve]) -> list[Trend]:
    """What section 4.4 says of Figures 5 and 6."""
    left, moved = ([each for each in curves if each.rebalanced == which] for which in (False, True))
    pairs = list(zip(left, moved, strict=True))
    falls = all(more.overall < fewer.overall for each in (left, moved) for fewer, more in pairwise(each))
    return [
        Trend("both strategies drop in performance with the number of stages", falls),
        Trend(
            "rebalanced, the whole is higher at every number of stages", all(a.overall < b.overall for a, b in pairs)
        ),
        Trend(
            "left alone it goes down more steadily: at least twice as steep, and it rises in fewer hours",
            all(a.slope < 2 * b.slope and a.slope < 0 and a.rises < b.rises for a, b in pairs),
        ),
        Trend(
            "rebalanced, it regains its performance: more of what was lost at the lowest point comes back",
            all(a.regained < b.regained for a, b in pairs),
        ),
        Trend(
            f"left alone it is ahead for brief periods only: {left[0].ahead:.1f} % of the time at {left[0].stages} "
            f"stages (the paper: 4.5; at most {AHEAD_PERCENT:g})",
            left[0].ahead <= AHEAD_PERCENT,
        ),
    ]


def to_dict(curves: Sequence[Curve]) -> dict[str, Any]:
    """Curves and trends."""
    return {"curves": list(map(asdict, curves)), "trends": [each._asdict() for each in trends(curves)]}


def _percents(runs: Sequence[Account], width: int) -> list[float]:
    """Of the optimum, over all runs, by so many bins."""
    done, best = ([sum(each) for each in zip(*lists, strict=True)] for lists in zip(*map(_rates, runs), strict=True))
    starts = range(0, len(done) - width + 1, width)
    return [100 * sum(done[at : at + width]) / sum(best[at : at + width]) for at in starts]


def _rates(run: Account) -> tuple[list[float], list[float]]:
    return run.done, run.best


def _regained(run: Account) -> float:
    after = AFTER_H * BINS
    shares = _percents([run], 1)[: len(run.done) // 2]
    low = min(range(len(shares) - after), key=shares.__getitem__)
    won = slice(low + 1, low + 1 + after)
    return 100 * (100 * sum(run.done[won]) / sum(run.best[won]) - shares[low]) / max(1e-9, 100 - shares[low])


def _ahead(run: Account, other: Account) -> float:
    return 100 * mean(mine > its for mine, its in zip(run.done, other.done, strict=True))
