"""Rebalancing a swarm that loses machines: Table 5 and Figure 6 of SWARM. `python -m benchmarks.swarm_rebalancing`.

The real rebalancer, directory and view on the virtual clock, throughput as a fluid, and a stand-in for the paper's
trace, which is not public: how much happens in it can be read in two ways, and a third is fitted to the paper. Shares
of the optimum are ratios of sums over the hours named.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean, median, stdev
from typing import TypeVar

from benchmarks.harness.flags import flags
from benchmarks.harness.results import Reported, tell
from benchmarks.swarm.account import Account
from benchmarks.swarm.availability import Trace
from benchmarks.swarm.fluid import Policy, play
from benchmarks.swarm.trends import CURVE_HEAD, Curve, curve, to_dict, trends
from pipelined.errors import UsageError

Shown = TypeVar("Shown", "Row", Curve)
LIMIT_POINTS, LIMIT_S = 5.0, 60.0
"""How far from the paper a cell may be, and how long 400 peers may take for 32 hours."""
HOURS = {"overall": slice(None), "first hour": slice(0, 1), "last hour": slice(-1, None)}
SIZES = (1, 2, 4, 8)
"""Times the stages and peers of Table 5, in Figure 6."""


@dataclass(frozen=True)
class Options(Reported):
    """Play traces and say how much of the optimum was reached."""

    seeds: int = 10
    """Traces, each with machines of its own that are struck."""
    events: tuple[float, ...] = (30.0, 10.0, 19.0)
    """Bursts of 3 peers an hour: "30 events an hour" as 30 bursts, as 30 peers, and as many as fit the paper best."""
    peers: int = 400
    """At the beginning, over 4 stages."""
    hours: float = 32.0
    """Length of the trace."""
    arms: tuple[str, ...] = ()
    """Rows to play, by name; all if none is given."""
    figure: bool = False
    """Figure 6 (4, 8, 16 and 32 stages, the first of `events`) instead of Table 5."""
    fetch: float = 600.0
    """Seconds from the assignment to a stage to serving it, some 4 GB at 53 Mb/s; the paper's simulation has none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seeds < 1 or self.peers < 8 or not self.events or min(self.events) <= 0:
            said = f"(seeds: {self.seeds}, peers: {self.peers}, events: {self.events})"
            raise UsageError(f"nothing to play {said}; give a seed, 8 peers, and events above 0, or more of each")
        if self.figure and self.hours < 8:
            raise UsageError(f"too short for a trend (hours: {self.hours:g}); give --figure at least 8")
        known = [arm.name for arm in ARMS]
        if strange := [name for name in self.arms if name not in known]:
            raise UsageError(f"unknown row {strange[0]!r}; known, for you to give in quotes: {'; '.join(known)}")

    def trace(self, events: float) -> Trace:
        paper = Trace()
        share = self.peers / paper.peers
        changed = replace(paper, peers=self.peers, last=round(paper.last * share), hours=self.hours)
        return replace(changed, events=events * share, spread=paper.spread * share)


@dataclass(frozen=True)
class Arm:
    """What is done, and the paper's row where it has one."""

    name: str
    policy: Policy
    paper: tuple[float, float, float] | None = None


ARMS = (
    Arm("none, newcomers at random", Policy(placed=False), (82.7, 99.0, 45.4)),
    Arm("T = 300 s, newcomers at random", Policy(300.0, placed=False), (95.8, 99.4, 88.9)),
    Arm("T = 60 s, newcomers at random", Policy(60.0, placed=False), (97.6, 99.8, 91.7)),
    Arm("none, newcomers placed", Policy()),
    Arm("T = 300 s, newcomers placed", Policy(300.0)),
    Arm("T = 60 s, newcomers placed", Policy(60.0)),
)


@dataclass(frozen=True)
class Row:
    """One arm on one kind of trace, over all seeds.

    Args:
        events: bursts an hour.
        mean, median, spread: percent of the optimum by the hours they are of; the spread is the standard deviation.
        paper: its figures, by the same hours; empty where it has no such row.
        moves: a seed.
        seconds: of one core, that the longest run took.
    """

    events: float
    arm: str
    mean: dict[str, float]
    median: dict[str, float]
    spread: dict[str, float]
    paper: dict[str, float]
    moves: float
    seconds: float

    @property
    def off(self) -> dict[str, float]:
        """Points above the paper."""
        return {name: self.mean[name] - theirs for name, theirs in self.paper.items()}

    @property
    def cells_within(self) -> int:
        """How many of its cells are as near to the paper as is promised."""
        return sum(abs(points) <= LIMIT_POINTS for points in self.off.values())

    @property
    def within(self) -> bool:
        """Everything that is promised of it."""
        return self.seconds < LIMIT_S and self.cells_within == len(self.paper)

    def line(self) -> str:
        cells = "  ".join(f"{self.mean[name]:5.1f} {self.median[name]:5.1f} {self.spread[name]:4.1f}" for name in HOURS)
        off = " ".join(f"{points:+5.1f}" for points in self.off.values())
        return f"{self.events:6g} {self.arm:31} {cells}   {off:17} {self.moves:6.0f} {self.seconds:6.1f}"


HEAD = (
    f"{'events':>6} {'arm':31} {'overall':16}  {'first hour':16}  {'last hour':16}   {'off the paper by':17} "
    f"{'moves':>6} {'run, s':>6}\n{'':38} {'  '.join([' mean   med   sd'] * 3)}"
)


def runs(trace: Trace, stages: int, policy: Policy, seeds: int) -> tuple[list[Account], float]:
    """Play all seeds; gives the seconds of one core that the longest run took, too."""
    accounts: list[Account] = []
    longest = 0.0
    for seed in range(seeds):
        start = time.process_time()
        accounts.append(play(trace, stages, policy, seed))
        longest = max(longest, time.process_time() - start)
    return accounts, longest


def row(arm: Arm, events: float, trace: Trace, seeds: int) -> Row:
    """One arm on all seeds, four stages."""
    accounts, longest = runs(trace, 4, arm.policy, seeds)
    percents = {name: [account.percent(hours) for account in accounts] for name, hours in HOURS.items()}
    return Row(
        events,
        arm.name,
        {name: mean(each) for name, each in percents.items()},
        {name: median(each) for name, each in percents.items()},
        {name: stdev(each) if seeds > 1 else 0.0 for name, each in percents.items()},
        dict(zip(HOURS, arm.paper, strict=True)) if arm.paper else {},
        mean(account.moves for account in accounts),
        longest,
    )


def table(options: Options) -> Iterator[Row]:
    """Table 5 on every kind of trace."""
    for events in options.events:
        for arm in (arm for arm in ARMS if not options.arms or arm.name in options.arms):
            fetching = replace(arm, policy=replace(arm.policy, fetch=options.fetch))
            yield row(fetching, events, options.trace(events), options.seeds)


def figure(options: Options) -> Iterator[Curve]:
    """Figure 6: both panels, at every number of stages."""
    for times in SIZES:
        trace = options.trace(options.events[0]).scaled(times)
        policies = [Policy(period, placed=False, fetch=options.fetch) for period in (0.0, 300.0)]
        (left, left_s), (moved, moved_s) = (runs(trace, 4 * times, policy, options.seeds) for policy in policies)
        yield curve(4 * times, False, left, moved, left_s)
        yield curve(4 * times, True, moved, left, moved_s)


def judged(rows: Sequence[Row]) -> Iterator[str]:
    """How many cells of each kind of trace are within what is promised."""
    for events in dict.fromkeys(row.events for row in rows):
        of_it = [row for row in rows if row.events == events and row.paper]
        cells = sum(row.cells_within for row in of_it), sum(len(row.paper) for row in of_it)
        yield f"{events:g} bursts an hour: {cells[0]} of {cells[1]} cells within {LIMIT_POINTS:g} points of the paper"
    yield f"the longest run took {max(row.seconds for row in rows):.1f} s of a core ({LIMIT_S:g} promised)"


def _shown(found: Shown) -> Shown:
    print(found.line(), file=sys.stderr, flush=True)
    return found


def main() -> int:
    """Read the flags, play, and say what was reached."""
    options = flags(Options, "swarm_rebalancing")
    if options.figure:
        curves = [_shown(each) for each in figure(options)]
        lines = [CURVE_HEAD, *(each.line() for each in curves), *(trend.line() for trend in trends(curves))]
        tell(options, {**asdict(options), **to_dict(curves)}, lambda: "\n".join(lines))
    else:
        rows = [_shown(each) for each in table(options)]
        raw = [{**asdict(each), "off": each.off, "within": each.within} for each in rows]
        lines = [HEAD, *(each.line() for each in rows), *judged(rows)]
        tell(options, {**asdict(options), "rows": raw}, lambda: "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
