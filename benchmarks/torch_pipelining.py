"""Our pipelines beside torch.distributed.pipelining over gloo: `python -m benchmarks.torch_pipelining`.

The same GPT-2, batch and optimizer on the same machine; each schedule that both have, and the best of each. Each
contender first tries every cut worth trying and keeps its own best of each schedule. Then come rounds, each a launch of
either and of the ceiling (as many independent one-thread trainers of the whole model as there are cores), in an order
drawn anew. The losses of every step and a gradient norm must agree, or nothing is reported.
"""

import math
import os
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import tyro

from benchmarks.harness.results import Reported, tell
from benchmarks.pipelines.contender import Result, Trial, launch
from benchmarks.pipelines.contest import STAGES_A_RANK, Contest
from benchmarks.pipelines.contest_table import ENTRY_HEAD, Duel, Entry, duels, limit
from pipelined.errors import UsageError

OURS, TORCH = "benchmarks.pipelines.contender_ours", "benchmarks.pipelines.contender_torch"
NAMES = {OURS: "ours", TORCH: "torch"}
ALONE = "alone"
AGREE = 1e-5
"""Largest relative difference of two contenders' losses and norms: sums in float32 are made in another order."""

Entrant = tuple[int, str]
"""Ranks, and the contender's module."""


@dataclass(frozen=True)
class Options(Reported):
    """Let our pipelines and torch's train the same model in turns."""

    ranks: tuple[int, ...] = (2, 4)
    """Numbers of ranks."""
    ours: tuple[str, ...] = ("gpipe", "one_f_one_b", "chimera", "zb_h1", "chimera_w")
    """Our schedules."""
    torch: tuple[str, ...] = ("gpipe", "one_f_one_b", "interleaved", "zb_v")
    """Torch's schedules, under our names for them."""
    rounds: int = 5
    """How often each is launched, after the search."""
    cuts: int = 3
    """Cuts each contender may try."""
    searches: int = 3
    """How often each cut is tried."""
    seed: int = 0
    """Of the order in each round."""
    contest: Contest = field(default_factory=Contest)
    """What is trained."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rounds", "cuts", "searches"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} must be at least 1 (it is {getattr(self, name)}); leave it out or raise it")
        unknown = [name for name in (*self.ours, *self.torch) if name not in STAGES_A_RANK]
        if unknown:
            raise UsageError(f"no schedule of this contest: {', '.join(unknown)}; known: {', '.join(STAGES_A_RANK)}")

    def schedules(self, module: str) -> tuple[str, ...]:
        """What a contender runs."""
        return self.ours if module == OURS else self.torch


def chosen(results: Sequence[Result]) -> list[Trial]:
    """The cut of each schedule with the largest mean rate over the searches; one alone may mistake luck for a cut."""
    rates = defaultdict[Trial, list[float]](list)
    for result in results:
        rates[Trial(result.schedule, result.ends)].append(result.tokens_per_s)
    best = dict[str, Trial]()
    for trial in sorted(rates, key=lambda trial: statistics.mean(rates[trial])):
        best[trial.schedule] = trial
    return list(best.values())


def agreed(results: Sequence[Result]) -> None:
    """See that all have trained the same model on the same data, step by step.

    Raises:
        RuntimeError: two losses of a step, or two norms, differ by more than the order of sums explains.
    """
    first = results[0]
    for other in results[1:]:
        pairs = [*zip(first.losses, other.losses, strict=True), (first.norm, other.norm)]
        apart = [(step, pair) for step, pair in enumerate(pairs) if not math.isclose(*pair, rel_tol=AGREE)]
        if apart:
            step, (mine, others) = apart[0]
            what = "gradient norms" if step == len(first.losses) else f"losses of step {step + 1}"
            fact = f"{what} differ ({first.schedule}: {mine}, {other.schedule}: {others})"
            raise RuntimeError(f"{fact}; the contenders do not do the same work, so their times mean nothing")


def search(options: Options, ranks: int, module: str) -> list[Trial]:
    """A contender's best cut of each schedule; a launch tries them all."""
    trials = [
        Trial(schedule, ends)
        for schedule in options.schedules(module)
        for ends in options.contest.cuts(ranks * STAGES_A_RANK[schedule], options.cuts)
    ]
    launches = range(options.searches if trials else 0)
    return chosen([result for _ in launches for result in launch(module, ranks, options.contest, trials)])


def compete(options: Options) -> list[Entry]:
    """Search, then let all take turns."""
    contest, cores = options.contest, len(os.sched_getaffinity(0))
    entrants = [(ranks, module) for ranks in options.ranks for module in (OURS, TORCH)]
    best: dict[Entrant, list[Trial]] = {each: search(options, *each) for each in entrants}
    whole = (cores, ALONE)
    best[whole] = [Trial(ALONE, (contest.config.layers + 2,))]
    taken = defaultdict[tuple[Entrant, str], list[Result]](list)
    order = random.Random(options.seed)
    for _ in range(options.rounds):
        turn = list[Result]()
        for ranks, module in order.sample(list(best), len(best)):
            if best[ranks, module]:
                results = launch(TORCH if module == ALONE else module, ranks, contest, best[ranks, module])
                turn += results
                for result in results:
                    taken[(ranks, module), result.schedule].append(result)
        agreed(turn)
    ceiling = tuple(result.tokens_per_s for result in taken[whole, ALONE])
    return [
        entry(contest, each, taken[each, trial.schedule], ceiling, cores) for each in entrants for trial in best[each]
    ]


def entry(
    contest: Contest, entrant: Entrant, results: Sequence[Result], ceiling: tuple[float, ...], cores: int
) -> Entry:
    """What one schedule of a contender came to, from its results of each round."""
    (ranks, module), first = entrant, results[0]
    rates, cpus = (tuple(getattr(r, name) for r in results) for name in ("tokens_per_s", "cpu_s"))
    most = limit(contest, first.schedule, first.ends, cores)
    return Entry(NAMES[module], first.schedule, ranks, first.ends, rates, ceiling, cpus, most)


def plain(options: Options, entries: Sequence[Entry], found: Sequence[Duel]) -> dict[str, Any]:
    """As JSON can hold it."""
    rows = {"entries": [each.to_dict() for each in entries], "duels": [each.to_dict() for each in found]}
    return {**asdict(options), "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0], **rows}


def report(entries: Sequence[Entry], found: Sequence[Duel]) -> str:
    """The table."""
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    rates = entries[0].ceiling
    spread = f"{statistics.median(rates):.0f} tokens/s ({min(rates):.0f}-{max(rates):.0f})"
    ceiling = f"ceiling: {spread}, {cores} independent trainers of one thread each; load {load:.1f}"
    return "\n".join([ENTRY_HEAD, *[each.line() for each in entries], ceiling, *[each.line() for each in found]])


def main() -> int:
    """Read the flags, let them compete, and say how it went."""
    options = tyro.cli(Options, prog="python -m benchmarks.torch_pipelining")
    entries = compete(options)
    found = duels(entries)
    tell(options, plain(options, entries, found), lambda: report(entries, found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
