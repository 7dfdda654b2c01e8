"""The answer to a request: the strategy that a search found in a space, and the baselines beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from pipelined.errors import UsageError
from pipelined.sharding.search.build_problem import build_problem
from pipelined.sharding.search.layouts import BASELINES, by_layer, candidates
from pipelined.sharding.search.methods.registry import find
from pipelined.sharding.search.options import Option
from pipelined.sharding.search.pricing import PHASES, PricedChain
from pipelined.sharding.search.problem import ROUNDING
from pipelined.sharding.search.strategy import Priced, format_split, price


@dataclass(frozen=True)
class ShardRequest:
    """What is searched, and how.

    Args:
        priced_chain: the chain on its machine.
        layout: one of `LAYOUTS`, factors by layer, or a file.
        replicas: the largest p0; None: any.
        limit: bytes that a rank may hold.
        search: the name of a search.
    """

    priced_chain: PricedChain
    layout: str = "auto"
    replicas: int | None = None
    limit: float = inf
    search: str = "dynamic"


@dataclass(frozen=True)
class ShardReport:
    """What was found.

    Args:
        space: the number of strategies.
        evaluated: strategies and parts of strategies that were priced.
        best: the strategy found.
        baselines: those that the ranks allow; a baseline need not fit the limit.
    """

    request: ShardRequest
    space: int
    evaluated: int
    best: Priced
    baselines: Mapping[str, Priced]

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        counts = {"ranks": self.request.priced_chain.ranks, "space": self.space, "evaluated": self.evaluated}
        baselines = {name: priced.to_dict() for name, priced in self.baselines.items()}
        return {**counts, **self.best.to_dict(), "baselines": baselines}

    def to_file(self) -> dict[str, Any]:
        """As `--out` writes it: also whether inputs are gathered again."""
        content = self.to_dict()
        for row, entry in zip(self.best.rows, content["strategy"], strict=True):
            entry["anew"] = row.option.regather_input
        return content

    def __str__(self) -> str:
        return "\n".join(_table(self))


def find_sharding(request: ShardRequest) -> ShardReport:
    """Search, and price the baselines.

    Raises:
        UsageError: the layout is invalid, or no strategy fits (the message says how much is missing).
    """
    searched = _search_layout(request)
    baselines = {name: _baseline(request, name) for name in BASELINES}
    return ShardReport(request, *searched, {name: priced for name, priced in baselines.items() if priced})


def _search_layout(request: ShardRequest) -> tuple[int, int, Priced]:
    priced_chain = request.priced_chain
    if request.layout in BASELINES:
        priced = _baseline(request, request.layout)
        if priced is None:
            fact = f"--layout {request.layout} does not go with {priced_chain.ranks} ranks"
            raise UsageError(f"{fact}; {_remedy(request)}")
        _refuse_too_big(request, priced.memory_bytes)
        return 1, 1, priced
    full = priced_chain.free_streams and request.layout != "paper"
    options = {op.name: priced_chain.options(op, request.replicas, full) for op in priced_chain.chain.operators}
    if request.layout not in ("auto", "paper"):
        options |= by_layer(priced_chain, request.layout)
    for name, choices in options.items():
        if not choices:
            raise UsageError(f"nothing splits {name} over {priced_chain.ranks} ranks; {_remedy(request)}")
    built = build_problem(priced_chain, list(options.values()))
    _refuse_too_big(request, built.problem.memory_bytes(built.problem.min_memory))
    outcome = find(request.search).search(built.problem, request.limit)
    assert outcome.strategy is not None, "the leanest strategy fits"
    return built.problem.space, outcome.evaluated, price(built, outcome.strategy)


def _remedy(request: ShardRequest) -> str:
    limits = [(op.sequences, op.heads) for op in request.priced_chain.chain.operators if op.attention and op.heads]
    shown = f" (sequences in a microbatch: {limits[0][0]}, heads: {limits[0][1]})" if limits else ""
    return f"take other ranks, fewer microbatches, or another layout{shown}"


def _refuse_too_big(request: ShardRequest, least: float) -> None:
    if least > request.limit * ROUNDING:
        fact = f"no such strategy fits (needed: {least:,.0f} bytes, limit: {request.limit:,.0f})"
        searched = request.layout == "auto"
        wider = ["--space full"] * (searched and not request.priced_chain.free_streams)
        remedies = ", ".join(["more ranks", *wider, *["another layout"] * (not searched)])
        remedy = f"take {remedies}, or a higher --memory-limit"
        raise UsageError(f"{fact}: {least - request.limit:,.0f} bytes are missing; {remedy}")


def _baseline(request: ShardRequest, name: str) -> Priced | None:
    """The best of a baseline's points that fit; if none fits, the best of all."""
    points = [_search_best(request, options) for options in candidates(request.priced_chain, name, request.replicas)]
    return min(points, key=lambda point: (point.memory_bytes > request.limit * ROUNDING, point.seconds), default=None)


def _search_best(request: ShardRequest, options: list[list[Option]]) -> Priced:
    built = build_problem(request.priced_chain, options)
    search = find("dynamic").search
    outcome = search(built.problem, request.limit)
    strategy = outcome.strategy or search(built.problem).strategy
    assert strategy is not None, "without a limit all fit"
    return price(built, strategy)


def _table(report: ShardReport) -> list[str]:
    priced_chain = report.request.priced_chain
    lines = [
        f"{priced_chain.ranks} ranks, {priced_chain.microbatches} microbatches a step: "
        f"{report.evaluated:,} evaluated of {report.space:,} strategies",
        "",
        f"{'layer':<12} {'factors':<16} {'state':<6} {'inputs':<6} {'forward':>12} {'backward':>12} {'update':>12} "
        f"{'ms':>10} {'MiB':>10}",
    ]
    lines += [_line(row.name, row.option, row.elements, row.seconds, row.memory_bytes) for row in report.best.rows]
    lines += [_line("in all", None, report.best.elements, report.best.seconds, report.best.memory_bytes), ""]
    lines += ["elements are what the busiest rank sends in a step; beside it:", ""]
    for name, priced in report.baselines.items():
        fits = "" if priced.memory_bytes <= report.request.limit * ROUNDING else "  does not fit"
        lines.append(_line(name, None, priced.elements, priced.seconds, priced.memory_bytes) + fits)
    return lines


def _line(name: str, option: Option | None, elements: Mapping[str, float], seconds: float, nbytes: float) -> str:
    split, state = (format_split(option.split), option.state) if option else ("", "")
    inputs = "" if option is None else "anew" if option.regather_input else "kept"
    sent = " ".join(f"{elements[phase]:>12,.0f}" for phase in PHASES)
    return f"{name:<12} {split:<16} {state:<6} {inputs:<6} {sent} {1e3 * seconds:>10,.3f} {nbytes / 2**20:>10,.1f}"
