"""Rebalancing a swarm that loses machines: Table 5 and Figure 6 of SWARM. `python -m benchmarks.swarm_rebalancing`.

The real rebalancer and the directory's leases on the virtual clock, throughput as a fluid, and a stand-in for the
paper's trace, which is not public. Shares of the optimum are ratios of sums over the hours named, averaged over seeds.
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean, stdev

import tyro

from benchmarks._swarm_fluid import Account, Policy, play
from benchmarks._swarm_trace import Trace

LIMIT_POINTS, LIMIT_S = 5.0, 60.0
"""How far from the paper a cell may be, and how long 400 peers may take for 32 hours."""
HOURS = {"overall": slice(None), "first hour": slice(0, 1), "last hour": slice(-1, None)}


@dataclass(frozen=True)
class Options:
    """Play traces and say how much of the optimum was reached."""

    seeds: int = 10
    """Traces, each with machines of its own that are struck."""
    peers: int = 400
    """At the beginning, over 4 stages."""
    hours: float = 32.0
    """Length of the trace."""
    figure: bool = False
    """Figure 6 (4, 8, 16 and 32 stages) instead of Table 5."""
    fetch: float = 600.0
    """Seconds from being told a stage to serving it, some 4 GB at 53 Mb/s; the paper's simulation tells of none."""
    json: bool = False
    """Print one JSON object instead of a table."""

    @property
    def trace(self) -> Trace:
        paper = Trace()
        share = self.peers / paper.peers
        changed = replace(paper, peers=self.peers, last=round(paper.last * share), hours=self.hours)
        return replace(changed, events=paper.events * share, spread=paper.spread * share)


@dataclass(frozen=True)
class Arm:
    """What is done, and the paper's row where it has one."""

    name: str
    policy: Policy
    paper: tuple[float, float, float] | None = None


ARMS = (
    Arm("none, newcomers at random", Policy(placed=False), (82.7, 99.0, 45.4)),
    Arm("none, newcomers placed", Policy()),
    Arm("T = 300 s, newcomers at random", Policy(300.0, placed=False), (95.8, 99.4, 88.9)),
    Arm("T = 300 s, newcomers placed", Policy(300.0)),
    Arm("T = 60 s, newcomers at random", Policy(60.0, placed=False), (97.6, 99.8, 91.7)),
    Arm("T = 60 s, newcomers placed", Policy(60.0)),
)


@dataclass(frozen=True)
class Row:
    """One arm at one number of stages, over all seeds.

    Args:
        percent: of the optimum, by the hours they are of.
        spread: standard deviation over the seeds.
        moves: a seed.
        seconds: that the longest run took.
    """

    arm: str
    stages: int
    percent: dict[str, float]
    spread: dict[str, float]
    paper: tuple[float, float, float] | None
    moves: float
    seconds: float

    @property
    def within(self) -> bool:
        """Within what is promised; true where the paper has no such row."""
        pairs = zip(self.percent.values(), self.paper or self.percent.values(), strict=True)
        return self.seconds < LIMIT_S and all(abs(ours - theirs) <= LIMIT_POINTS for ours, theirs in pairs)

    def line(self) -> str:
        cells = [f"{self.percent[name]:6.1f} ({self.spread[name]:4.1f})" for name in HOURS]
        paper = "  ".join(f"{each:5.1f}" for each in self.paper) if self.paper else " " * 19
        return f"{self.arm:31} {self.stages:6} {'  '.join(cells)}   {paper}  {self.moves:6.0f} {self.seconds:6.1f}"


HEAD = (
    f"{'arm':31} {'stages':>6} {'overall':>13}  {'first hour':>13}  {'last hour':>13}   {'the paper':19}  "
    f"{'moves':>6} {'run, s':>6}"
)


def row(arm: Arm, trace: Trace, stages: int, seeds: int) -> Row:
    """Play all seeds."""
    accounts: list[Account] = []
    longest = 0.0
    for seed in range(seeds):
        start = time.perf_counter()
        accounts.append(play(trace, stages, arm.policy, seed))
        longest = max(longest, time.perf_counter() - start)
    percents = {name: [account.percent(hours) for account in accounts] for name, hours in HOURS.items()}
    return Row(
        arm.name,
        stages,
        {name: mean(each) for name, each in percents.items()},
        {name: stdev(each) if seeds > 1 else 0.0 for name, each in percents.items()},
        arm.paper,
        mean(account.moves for account in accounts),
        longest,
    )


def rows(options: Options) -> Sequence[Row]:
    """Table 5, or Figure 6's two panels without the paper's figures."""
    arms = [replace(arm, policy=replace(arm.policy, fetch=options.fetch)) for arm in ARMS]
    if not options.figure:
        return [row(arm, options.trace, 4, options.seeds) for arm in arms]
    panels = [replace(arm, paper=None) for arm in arms if arm.policy.period in (0.0, 300.0) and not arm.policy.placed]
    return [row(arm, options.trace.scaled(n), 4 * n, options.seeds) for arm in panels for n in (1, 2, 4, 8)]


def main() -> int:
    """Read the flags, play, and say what was reached."""
    options = tyro.cli(Options, prog="python -m benchmarks.swarm_rebalancing")
    if not options.json:
        print(HEAD, flush=True)
    done = rows(options)
    if options.json:
        print(json.dumps({**asdict(options), "rows": [{**asdict(each), "within": each.within} for each in done]}))
    else:
        print("\n".join(each.line() for each in done))
    return 0


if __name__ == "__main__":
    sys.exit(main())
