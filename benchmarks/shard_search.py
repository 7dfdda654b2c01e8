"""How fast, and how well, the searches over ways to split operators do: `python -m benchmarks.shard_search`.

Figure 8 of AutoDDL (four multiplications on 128 and 4,096 ranks) by every search, ten runs of each that draws; a block
of width 8,192 in the full space; and the same block in the memory that four replicas take, beside the paper's best.
Needs neither ranks nor torch.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

import tyro

from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.gpt2.planning.operators import blocks
from benchmarks.harness.results import Reported, tell
from collectives import Links
from pipelined.sharding.search.build_problem import SearchProblem, build_problem
from pipelined.sharding.search.chain import Chain, read_chain
from pipelined.sharding.search.methods.registry import find
from pipelined.sharding.search.network import Network
from pipelined.sharding.search.pricing import PricedChain
from pipelined.sharding.search.problem import Problem
from pipelined.sharding.search.strategy import format_split, price

FIGURE_8 = "1024:32768-16384-4096-2048-512"
PIZ_DAINT = Links(20e-6, 1 / 8.5e9, 0.0)
"""Seconds of a message and of a byte; the paper prints the bandwidth alone."""
DRAWN = ("descent", "metropolis", "random")
BUDGETS = (125, 250, 500, 1000, 2000)
"""Strategies that a search by chance prices."""
TOKENS, WIDTH = 2**20, 8192
PAPERS = 9800
"""Mi elements a block of the paper's best at 64 ranks, with at most four replicas."""
MI = 2**20


@dataclass(frozen=True)
class Options(Reported):
    """Time the searches, and compare what they find."""

    runs: int = 10
    """Runs of each search by chance."""
    ranks: tuple[int, ...] = (128, 4096)
    """Ranks of Figure 8."""
    blocks: tuple[int, ...] = (64, 256)
    """Ranks over which a block is split in the full space."""
    png: Path | None = None
    """Draw Figure 8 to this file."""


@dataclass(frozen=True)
class Run:
    """A search of Figure 8's chain.

    Args:
        budget: strategies that a search by chance was to price; 0: the search ends by itself.
        seconds: of the search, without the prices that all start from.
        cost: of the strategy found, as a share of the best.
    """

    search: str
    budget: int
    evaluated: int
    seconds: float
    cost: float


def figure_8(ranks: int, runs: int) -> tuple[dict[str, Any], list[Run]]:
    """The best strategy, and what each search comes to."""
    started = time.perf_counter()
    built = _built(read_chain(FIGURE_8), ranks, PIZ_DAINT)
    priced_s = time.perf_counter() - started
    exact = {name: _timed(built.problem, name) for name in ("dynamic", "exhaustive")}
    best = find("dynamic").search(built.problem)
    assert best.strategy is not None
    found = [Run(name, 0, evaluated, took, cost / best.seconds) for name, (evaluated, took, cost) in exact.items()]
    for name in DRAWN:
        for evaluations in BUDGETS:
            for seed in range(runs):
                evaluated, took, cost = _timed(built.problem, name, evaluations=evaluations, seed=seed)
                found.append(Run(name, evaluations, evaluated, took, cost / best.seconds))
    factors = [format_split(row.option.split) for row in price(built, best.strategy).rows]
    sizes = {"space": built.problem.space, "priced_s": priced_s}
    return {**sizes, "milliseconds": 1e3 * best.seconds, "factors": factors}, found


def block(ranks: int, microbatches: int) -> dict[str, Any]:
    """A block in the full space, in the memory that the paper's strategies with four replicas take at 64 ranks."""
    limit = 4 * 4 * 12 * WIDTH**2 / 16
    started = time.perf_counter()
    built = _built(
        Chain(blocks(ModelConfig(1, WIDTH, WIDTH, 1), TOKENS, normed=False)),
        ranks,
        Links(0.0, 1e-9, 0.0),
        microbatches,
        full=True,
    )
    best = find("dynamic").search(built.problem, limit)
    took = time.perf_counter() - started
    assert best.strategy is not None
    priced = price(built, best.strategy)
    elements = sum(priced.elements.values()) / MI
    rows = [f"{format_split(row.option.split)} {row.option.state}" for row in priced.rows]
    numbers = {"ranks": ranks, "microbatches": microbatches, "seconds": took, "space": built.problem.space}
    return {**numbers, "elements_mi": elements, "share_of_limit": priced.memory_bytes / limit, "strategy": rows}


def _built(chain: Chain, ranks: int, links: Links, microbatches: int = 1, full: bool = False) -> SearchProblem:
    priced_chain = PricedChain(chain, (ranks,), Network(links), microbatches, full)
    return build_problem(priced_chain, [priced_chain.options(op, full=full) for op in chain.operators])


def _timed(problem: Problem, name: str, **how: int) -> tuple[int, float, float]:
    """Strategies priced, seconds, and the cost of what was found."""
    started = time.perf_counter()
    found = find(name).search(problem, inf, **how)
    return found.evaluated, time.perf_counter() - started, found.seconds


def as_table(figures: dict[int, Any], blocks: Sequence[dict[str, Any]]) -> str:
    """The figures for people."""
    lines = []
    for ranks, (best, runs) in figures.items():
        lines.append(
            f"{ranks} ranks, priced in {best['priced_s']:.2f} s: of {best['space']:,} strategies the best takes"
        )
        lines += [f"{best['milliseconds']:.3f} ms by {' '.join(best['factors'])}", ""]
        lines.append(f"{'search':<12} {'evaluated':>12} {'seconds':>9} {'cost, mean':>11} {'worst':>7}")
        for some in _grouped(runs):
            evaluated, took, mean = (sum(column) / len(some) for column in zip(*map(_numbers, some), strict=True))
            worst = max(run.cost for run in some)
            lines.append(f"{some[0].search:<12} {evaluated:>12,.0f} {took:>9.4f} {mean:>11.4f} {worst:>7.4f}")
        lines.append("")
    lines.append(
        f"{'ranks':>5} {'N':>3} {'seconds':>8} {'Mi elements':>12} {'state':>6}  a block of width {WIDTH}, full space"
    )
    for row in blocks:
        share = f"{row['ranks']:>5} {row['microbatches']:>3} {row['seconds']:>8.2f} {row['elements_mi']:>12,.2f}"
        lines.append(f"{share} {row['share_of_limit']:>6.2f}  {', '.join(row['strategy'])}")
    return "\n".join([*lines, f"the paper's best at 64 ranks: {PAPERS:,} Mi elements, at most 4 replicas, state 1.00"])


def _numbers(run: Run) -> tuple[float, float, float]:
    return run.evaluated, run.seconds, run.cost


def _grouped(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs of the same search and budget together."""
    found: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        found.setdefault((run.search, run.budget), []).append(run)
    return list(found.values())


def draw(figures: dict[int, Any], file: Path) -> None:
    """Cost beside the best over time beside trying all, with the range of nine runs in ten, as the paper's Figure 8."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(figures), 4), layout="constrained")
    for axes, (ranks, (_, runs)) in zip(
        figure.subplots(1, len(figures), squeeze=False)[0], figures.items(), strict=True
    ):
        whole = next(run.seconds for run in runs if run.search == "exhaustive")
        for name in ("dynamic", "exhaustive", *DRAWN):
            groups = [some for some in _grouped(runs) if some[0].search == name]
            times = [sum(run.seconds for run in some) / len(some) / whole for some in groups]
            costs = [sorted(run.cost for run in some) for some in groups]
            axes.plot(times, [sum(some) / len(some) for some in costs], marker="o", markersize=3, label=name)
            edge = [len(some) // 20 for some in costs]
            low, high = (
                [some[at] for some, at in zip(costs, places, strict=True)] for places in (edge, [-1 - e for e in edge])
            )
            axes.fill_between(times, low, high, alpha=0.2)
        axes.set(
            xscale="log", title=f"{ranks:,} ranks", xlabel="time, beside trying all", ylabel="cost, beside the best"
        )
        axes.legend()
    figure.savefig(file, dpi=150)


def main() -> int:
    """Run what the flags ask for."""
    options = tyro.cli(Options, prog="python -m benchmarks.shard_search")
    figures = {ranks: figure_8(ranks, options.runs) for ranks in options.ranks}
    blocks = [block(ranks, microbatches) for ranks in options.blocks for microbatches in (1, 4, 16, 64)]
    if options.png:
        draw(figures, options.png)
    plain = {str(ranks): {**best, "runs": [asdict(run) for run in runs]} for ranks, (best, runs) in figures.items()}
    tell(options, {"figure_8": plain, "blocks": blocks}, lambda: as_table(figures, blocks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
