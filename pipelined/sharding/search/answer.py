"""The answer to a request: the strategy that a search found in a space, and the baselines beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from pipelined.errors import UsageError
from pipelined.sharding.search.build_problem import pose
from pipelined.sharding.search.layouts import BASELINES, by_layer, candidates
from pipelined.sharding.search.options import Option
from pipelined.sharding.search.pricing import PHASES, Setting
from pipelined.sharding.search.problem import ROUNDING
from pipelined.sharding.search.registry import find
from pipelined.sharding.search.strategy import Priced, price, written


@dataclass(frozen=True)
class ShardRequest:
    """What is searched, and how.

    Args:
        setting: the chain on its machine.
        layout: one of `LAYOUTS`, factors by layer, or a file.
        replicas: the largest p0; None: any.
        limit: bytes that a rank may hold.
        search: the name of a search.
    """

    setting: Setting
    layout: str = "auto"
    replicas: int | None = None
    limit: float = inf
    search: str = "dynamic"


@dataclass(frozen=True)
class Answer:
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
        counts = {"ranks": self.request.setting.ranks, "space": self.space, "evaluated": self.evaluated}
        others = {name: priced.to_dict() for name, priced in self.baselines.items()}
        return {**counts, **self.best.to_dict(), "baselines": others}

    def to_file(self) -> dict[str, Any]:
        """As `--out` writes it: also whether inputs are gathered anew."""
        found = self.to_dict()
        for row, entry in zip(self.best.rows, found["strategy"], strict=True):
            entry["anew"] = row.option.anew
        return found

    def __str__(self) -> str:
        return "\n".join(_table(self))


def answer(request: ShardRequest) -> Answer:
    """Search, and price the baselines.

    Raises:
        UsageError: the layout is none, or no strategy fits (the message says how much is missing).
    """
    found = _searched(request)
    baselines = {name: _baseline(request, name) for name in BASELINES}
    return Answer(request, *found, {name: priced for name, priced in baselines.items() if priced})


def _searched(request: ShardRequest) -> tuple[int, int, Priced]:
    setting = request.setting
    if request.layout in BASELINES:
        priced = _baseline(request, request.layout)
        if priced is None:
            raise UsageError(f"--layout {request.layout} does not go with {setting.ranks} ranks; {_remedy(request)}")
        _refuse_too_big(request, priced.held)
        return 1, 1, priced
    full = setting.wide and request.layout != "paper"
    options = {op.name: setting.options(op, request.replicas, full) for op in setting.chain.operators}
    if request.layout not in ("auto", "paper"):
        options |= by_layer(setting, request.layout)
    for name, some in options.items():
        if not some:
            raise UsageError(f"nothing splits {name} over {setting.ranks} ranks; {_remedy(request)}")
    posed = pose(setting, list(options.values()))
    _refuse_too_big(request, posed.problem.held(posed.problem.leanest))
    found = find(request.search).search(posed.problem, request.limit)
    assert found.strategy is not None, "the leanest strategy fits"
    return posed.problem.space, found.evaluated, price(posed, found.strategy)


def _remedy(request: ShardRequest) -> str:
    limits = [(op.sequences, op.heads) for op in request.setting.chain.operators if op.core and op.heads]
    shown = f" (sequences in a microbatch: {limits[0][0]}, heads: {limits[0][1]})" if limits else ""
    return f"take other ranks, fewer microbatches, or another layout{shown}"


def _refuse_too_big(request: ShardRequest, least: float) -> None:
    if least > request.limit * ROUNDING:
        fact = f"no such strategy fits (needed: {least:,.0f} bytes, limit: {request.limit:,.0f})"
        more = "take more ranks, --space full, or a higher --memory-limit"
        raise UsageError(f"{fact}: {least - request.limit:,.0f} bytes are missing; {more}")


def _baseline(request: ShardRequest, name: str) -> Priced | None:
    """The best of a baseline's points; of those that do not fit, if none does."""
    found = [_best(request, options) for options in candidates(request.setting, name, request.replicas)]
    return min(found, key=lambda priced: (priced.held > request.limit * ROUNDING, priced.seconds), default=None)


def _best(request: ShardRequest, options: list[list[Option]]) -> Priced:
    posed = pose(request.setting, options)
    search = find("dynamic").search
    found = search(posed.problem, request.limit)
    strategy = found.strategy or search(posed.problem).strategy
    assert strategy is not None, "without a limit all fit"
    return price(posed, strategy)


def _table(found: Answer) -> list[str]:
    setting = found.request.setting
    lines = [
        f"{setting.ranks} ranks, {setting.microbatches} microbatches a step: {found.evaluated:,} evaluated of "
        f"{found.space:,} strategies",
        "",
        f"{'layer':<12} {'factors':<16} {'state':<6} {'inputs':<6} {'forward':>12} {'backward':>12} {'update':>12} "
        f"{'ms':>10} {'MiB':>10}",
    ]
    lines += [_line(row.name, row.option, row.elements, row.seconds, row.held) for row in found.best.rows]
    lines += [_line("in all", None, found.best.elements, found.best.seconds, found.best.held), ""]
    lines += ["elements are what the busiest rank sends in a step; beside it:", ""]
    for name, priced in found.baselines.items():
        fits = "" if priced.held <= found.request.limit * ROUNDING else "  does not fit"
        lines.append(_line(name, None, priced.elements, priced.seconds, priced.held) + fits)
    return lines


def _line(name: str, option: Option | None, elements: Mapping[str, float], seconds: float, held: float) -> str:
    split, state = (written(option.split), option.state) if option else ("", "")
    inputs = "" if option is None else "anew" if option.anew else "kept"
    sent = " ".join(f"{elements[phase]:>12,.0f}" for phase in PHASES)
    return f"{name:<12} {split:<16} {state:<6} {inputs:<6} {sent} {1e3 * seconds:>10,.3f} {held / 2**20:>10,.1f}"
