"""Our pipeline beside torch.distributed.pipelining over gloo: `python -m benchmarks.torch_pipelining`.

The same GPT-2, batch, recipe and schedule on the same machine. Each contender first tries every cut worth trying and
keeps its own best of each schedule; then they take turns, each round a launch of either, with the ceiling: as many
independent one-thread trainers of the whole model as there are cores. Losses must agree, or nothing is reported.
"""

import json
import math
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import tyro

from benchmarks._contender import Result, Trial, launch
from benchmarks._contest import Contest, Ends
from pipelined.errors import UsageError

OURS, TORCH = "benchmarks._contender_ours", "benchmarks._contender_torch"
ALONE = "alone"
LOSSES_AGREE = 1e-4
"""Largest relative difference of two contenders' losses: sums in float32 are made in another order."""
PROMISED = {2: 1.1, 4: 1.0}
"""By number of ranks, our tokens a second over theirs."""


@dataclass(frozen=True)
class Options:
    """Let our pipeline and torch's train the same model in turns."""

    ranks: tuple[int, ...] = (2, 4)
    """Numbers of ranks."""
    schedules: tuple[str, ...] = ("gpipe", "one_f_one_b")
    """Schedules that both have."""
    rounds: int = 5
    """How often each is launched, after the search."""
    cuts: int = 4
    """Cuts each contender may try."""
    contest: Contest = field(default_factory=Contest)
    """What is trained."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def __post_init__(self) -> None:
        for name in ("rounds", "cuts"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} must be at least 1 (it is {getattr(self, name)}); leave it out or raise it")


@dataclass(frozen=True)
class Row:
    """One schedule on one number of ranks, a figure of each round.

    Args:
        ours, theirs, ceiling: tokens a second.
        our_cpu, their_cpu, alone_cpu: core-seconds a step of all ranks together, or of one trainer of the whole model.
        our_ends, their_ends: the cuts each contender chose.
    """

    schedule: str
    ranks: int
    our_ends: Ends
    their_ends: Ends
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    ceiling: tuple[float, ...]
    our_cpu: tuple[float, ...]
    their_cpu: tuple[float, ...]
    alone_cpu: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """Our tokens a second over theirs in each round."""
        return [ours / theirs for ours, theirs in zip(self.ours, self.theirs, strict=True)]

    @property
    def fraction(self) -> float:
        """Our share of the ceiling: the median over rounds."""
        return statistics.median(ours / most for ours, most in zip(self.ours, self.ceiling, strict=True))

    @property
    def their_fraction(self) -> float:
        return statistics.median(theirs / most for theirs, most in zip(self.theirs, self.ceiling, strict=True))

    @property
    def kept(self) -> bool | None:
        """Whether the promise is kept; None where nothing is promised."""
        promised = PROMISED.get(self.ranks)
        return None if promised is None else statistics.median(self.ratios) >= promised

    def plain(self) -> dict[str, object]:
        """As JSON can hold it."""
        fractions = {"fraction": self.fraction, "their_fraction": self.their_fraction}
        return {**asdict(self), "ratios": self.ratios, "ratio": statistics.median(self.ratios), **fractions}

    def line(self) -> str:
        """As a row of the table."""
        ours, theirs, ratio = map(statistics.median, (self.ours, self.theirs, self.ratios))
        our_cpu, their_cpu, alone = map(statistics.median, (self.our_cpu, self.their_cpu, self.alone_cpu))
        promised = PROMISED.get(self.ranks)
        verdict = "" if promised is None else f"  {'kept' if self.kept else 'short of'} {promised:.1f}"
        return (
            f"{self.schedule:12} {self.ranks:5} {ours:9.0f} {theirs:9.0f} {ratio:7.3f} "
            f"({min(self.ratios):.3f}-{max(self.ratios):.3f}) {self.fraction:8.1%} {self.their_fraction:8.1%} "
            f"{our_cpu:7.2f} {their_cpu:7.2f} {alone:7.2f}  "
            f"{_cut(self.our_ends)} {_cut(self.their_ends)}{verdict}"
        )


HEAD = (
    f"{'schedule':12} {'ranks':>5} {'ours':>9} {'torch':>9} {'ratio':>7} (least-most) of the ceiling; core-s a step: "
    "ours, torch, alone; cuts"
)


def chosen(results: Sequence[Result]) -> list[Trial]:
    """The fastest cut of each schedule."""
    by_schedule = defaultdict[str, list[Result]](list)
    for result in results:
        by_schedule[result.schedule].append(result)
    best = [max(several, key=lambda result: result.tokens_per_s) for several in by_schedule.values()]
    return [Trial(result.schedule, result.ends) for result in best]


def agreed(results: Sequence[Result]) -> None:
    """See that all have trained the same model on the same data.

    Raises:
        RuntimeError: two losses differ by more than the order of sums explains.
    """
    low, high = (pick(results, key=lambda result: result.loss) for pick in (min, max))
    if not math.isclose(low.loss, high.loss, rel_tol=LOSSES_AGREE):
        fact = f"losses differ ({low.schedule}: {low.loss}, {high.schedule}: {high.loss})"
        raise RuntimeError(f"{fact}; the contenders do not do the same work, so their times mean nothing")


def search(options: Options, ranks: int) -> dict[str, list[Trial]]:
    """Each contender's best cut of every schedule, tried in one launch of each."""
    cuts = options.contest.cuts(ranks, options.cuts)
    trials = [Trial(schedule, ends) for schedule in options.schedules for ends in cuts]
    return {module: chosen(launch(module, ranks, options.contest, trials)) for module in (OURS, TORCH)}


def compete(options: Options) -> list[Row]:
    """Search, then let all take turns."""
    contest, cores = options.contest, len(os.sched_getaffinity(0))
    whole = [Trial(ALONE, (contest.config.layers + 2,))]
    best = {ranks: search(options, ranks) for ranks in options.ranks}
    taken = defaultdict[tuple[int, str, str], list[Result]](list)
    for _ in range(options.rounds):
        (alone,) = launch(TORCH, cores, contest, whole)
        taken[cores, TORCH, ALONE].append(alone)
        for ranks, module in ((ranks, module) for ranks in options.ranks for module in (OURS, TORCH)):
            results = launch(module, ranks, contest, best[ranks][module])
            agreed([alone, *results])
            for result in results:
                taken[ranks, module, result.schedule].append(result)
    return [
        row(taken[ranks, OURS, schedule], taken[ranks, TORCH, schedule], taken[cores, TORCH, ALONE])
        for ranks in options.ranks
        for schedule in options.schedules
    ]


def row(ours: Sequence[Result], theirs: Sequence[Result], alone: Sequence[Result]) -> Row:
    """What one schedule came to, from the results of each round."""
    contenders = ours, theirs, alone
    rates = [tuple(result.tokens_per_s for result in results) for results in contenders]
    cpus = [tuple(result.cpu_s for result in results) for results in contenders]
    return Row(ours[0].schedule, len(ours[0].ends), ours[0].ends, theirs[0].ends, *rates, *cpus)


def told(options: Options, rows: Sequence[Row]) -> str:
    """The table, or one JSON object."""
    if options.json:
        load = {"cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0]}
        return json.dumps({**asdict(options), **load, "rows": [row.plain() for row in rows]})
    low, middle, high = min(rows[0].ceiling), statistics.median(rows[0].ceiling), max(rows[0].ceiling)
    cores = len(os.sched_getaffinity(0))
    ceiling = f"ceiling: {middle:.0f} tokens/s ({low:.0f}-{high:.0f}), {cores} independent trainers of one thread each"
    return "\n".join([HEAD, *[row.line() for row in rows], f"{ceiling}; load {os.getloadavg()[0]:.1f}"])


def _cut(ends: Ends) -> str:
    return "|".join(map(str, ends))


def main() -> int:
    """Read the flags, let them compete, and say how it went."""
    options = tyro.cli(Options, prog="python -m benchmarks.torch_pipelining")
    print(told(options, compete(options)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
