"""The candidates of a search: every schedule, T, D, W, B, N and recomputation for a number of ranks and a batch.

All candidates train on the same batch with the losses of one process. Schedules without a flush have other losses, so
they are included only on request, and their label says so.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipelined.errors import UsageError
from pipelined.programs.plan import Plan
from pipelined.schedules import declared, find, knobs_of, known
from pipelined.sharding.search.matmul import divisors
from pipelined.training.graph.compiled import is_compilable

AUTO = "auto"
"""Instead of a number of ranks of a worker: any."""
MAX_CHUNKS = 4
"""The most stages of a pipe on a worker that are tried."""
NOT_EXACT = ", not exact"
"""The label of a schedule without a flush: its gradients are those of older weights."""
ONE_STAGE = "gpipe"
"""The schedule that stands for all schedules with one stage (data parallelism); they are the same there."""


@dataclass(frozen=True)
class Candidate:
    """One way to run the job."""

    plan: Plan
    recompute: bool = False

    @property
    def label(self) -> str:
        """The schedule's name with the settings that differ from the default."""
        plan = self.plan
        words = [knob.label(plan.knobs[knob.name]) for knob in knobs_of(plan.schedule) if knob.name in plan.knobs]
        words += [f"T={plan.tensor}"] if plan.tensor > 1 else []
        return " ".join([plan.schedule, *words]) + ("" if plan.flushes else NOT_EXACT)


def candidates(
    ranks: int, batch: int, layers: int, fixed: Mapping[str, Any] | None = None, without_flush: bool = False
) -> Iterator[Candidate]:
    """All candidates.

    Args:
        ranks: the number of ranks; every plan uses all of them.
        batch: sequences per step, B·N·W.
        layers: the most stages of a plan.
        fixed: settings that the user has chosen: sizes and knobs of a `Plan`, `recompute`, `tensor` (`AUTO`: any) and
            its `layout`, of workers of several ranks alone; without one that is open; `compile`, with which only plans
            that can be compiled are tried.
        without_flush: include schedules without a flush.
    Raises:
        UsageError: no such schedule, or no plan matches.
    """
    fixed = dict(fixed or {})
    tensor = fixed.pop("tensor", 1)
    layout = fixed.pop("layout", None) or ""
    compiles = fixed.get("compile", False)
    recomputations = [fixed.pop("recompute")] if "recompute" in fixed else [False, True]
    names = [fixed["schedule"]] if "schedule" in fixed else known()
    for name in names:
        find(name)
    every = list[Plan]()
    for team in _team_sizes(ranks, tensor, layout):
        for name in names:
            deep = len(names) > 1 and name != ONE_STAGE
            plans = _plans_of(name, ranks // team, batch, layers, fixed=fixed, deep=deep)
            matching = [plan for plan in plans if _has_sizes(plan, fixed) and (team == 1 or plan.flushes)]
            every += [replace(plan, tensor=team, layout=layout) for plan in matching]
    possible = [plan for plan in every if (without_flush or plan.flushes) and (not compiles or is_compilable(plan))]
    if not possible:
        fixed |= ({} if tensor == 1 else {"tensor": tensor}) | ({"layout": layout} if layout else {})
        settings = "".join(f", {name}: {value}" for name, value in fixed.items())
        kind = "schedule" if without_flush else "schedule with a flush"
        fact = f"no {kind} uses all ranks (ranks: {ranks}, batch: {batch}, layers: {layers}{settings})"
        remedy = "choose a batch with more divisors, another number of ranks, or fix fewer settings"
        others = ", or let `python -m pipelined plan --stale` look at those without a flush" if every else ""
        raise UsageError(f"{fact}; {remedy}{others}")
    for plan in possible:
        yield from (Candidate(plan, recompute) for recompute in recomputations)


def data_parallel(ranks: int, batch: int) -> Plan | None:
    """Plain data parallelism, the baseline: every rank holds the whole model and takes its share as one microbatch."""
    return None if batch % ranks else Plan(ONE_STAGE, 1, ranks, batch // ranks, 1)


def _team_sizes(ranks: int, tensor: int | str, layout: str) -> list[int]:
    """The ranks of a worker to try; all divide the ranks."""
    if isinstance(tensor, int):
        return [tensor] if ranks % tensor == 0 else []
    every = divisors(ranks)
    return every[1:] if layout else every  # one rank would drop the layout


def _has_sizes(plan: Plan, fixed: Mapping[str, Any]) -> bool:
    return all(size == fixed.get(name, size) for name, size in plan.sizes.items())


def _plans_of(
    name: str, ranks: int, batch: int, layers: int, *, fixed: Mapping[str, Any], deep: bool
) -> Iterator[Plan]:
    """The plans of one schedule; deep: without those of a single stage, as `ONE_STAGE` stands for them."""
    for depth in range(2 if deep else 1, min(layers, ranks * MAX_CHUNKS) + 1):
        for knobs in _variants(name, depth, batch, fixed):
            workers = _workers_of(name, depth, batch, knobs)
            if workers is None or ranks % workers:
                continue
            width = ranks // workers
            if batch % width:
                continue
            for microbatch_size in divisors(batch // width):
                microbatches = batch // width // microbatch_size
                plan = _try(name, depth, width, microbatch_size, microbatches, knobs=knobs)
                if plan is not None and knobs in _variants(name, depth, microbatches, fixed):
                    yield plan


def _workers_of(name: str, depth: int, batch: int, knobs: Mapping[str, Any]) -> int | None:
    """The workers of a pipeline, equal for all numbers of microbatches; None: the schedule refuses all of these."""
    for microbatches in (depth, *divisors(batch)):
        plan = _try(name, depth, 1, 2, microbatches, knobs=knobs)
        if plan is not None:
            return plan.stage_map.workers
    return None


def _variants(name: str, depth: int, microbatches: int, fixed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The knobs to try with a schedule: those that the user fixed, and one at a time of the schedule's own others."""
    chosen = {knob.name: fixed[knob.name] for knob in knobs_of(name) if knob.name in fixed}
    own = [knob for knob in declared(find(name)) if knob.name not in fixed]
    return [chosen] + [{**chosen, knob.name: value} for knob in own for value in knob.tries(depth, microbatches)]


def _try(
    name: str, depth: int, width: int, microbatch_size: int, microbatches: int, *, knobs: Mapping[str, Any]
) -> Plan | None:
    """The plan, or None if the schedule refuses the shape or the microbatch cannot be cut."""
    try:
        plan = Plan(name, depth, width, microbatch_size, microbatches, knobs=knobs)
        return plan if plan.stage_map else None
    except UsageError:
        return None
