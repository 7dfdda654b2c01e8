"""The candidates of a search: every schedule, T, D, W, B, N and recomputation for a number of ranks and a batch.

All candidates train on the same batch with the losses of one process. Schedules without a flush have other losses, so
they are included only on request, and their label says so.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipelined.errors import UsageError
from pipelined.programs.plan import Plan
from pipelined.schedules import find, knobs_of, own_knobs, schedule_names
from pipelined.sharding.search.matmul import divisors
from pipelined.training.graph.compiled import is_compilable

AUTO = "auto"
"""In place of the number of ranks of a worker: any number."""
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
        settings = [knob.label(plan.knobs[knob.name]) for knob in knobs_of(plan.schedule) if knob.name in plan.knobs]
        settings += [f"T={plan.tensor}"] if plan.tensor > 1 else []
        return " ".join([plan.schedule, *settings]) + ("" if plan.flushes else NOT_EXACT)


def candidates(
    ranks: int, batch: int, layers: int, fixed: Mapping[str, Any] | None = None, without_flush: bool = False
) -> Iterator[Candidate]:
    """All candidates.

    Args:
        ranks: the number of ranks; every plan uses all of them.
        batch: sequences per step, B·N·W.
        layers: the most stages of a plan.
        fixed: settings that the user has chosen: sizes and knobs of a `Plan`; `recompute`; `tensor` (`AUTO`: any);
            `layout`, only for workers of several ranks, and open if it is missing; `compile`, with which only plans
            that can be compiled are candidates.
        without_flush: include schedules without a flush.
    Raises:
        UsageError: no such schedule, or no plan matches.
    """
    fixed = dict(fixed or {})
    tensor = fixed.pop("tensor", 1)
    layout = fixed.pop("layout", None) or ""
    compiles = fixed.get("compile", False)
    recompute_choices = [fixed.pop("recompute")] if "recompute" in fixed else [False, True]
    names = [fixed["schedule"]] if "schedule" in fixed else schedule_names()
    for name in names:
        find(name)
    plans = list[Plan]()
    for team_size in _team_sizes(ranks, tensor, layout):
        for name in names:
            min_depth = 2 if len(names) > 1 and name != ONE_STAGE else 1
            shapes = _schedule_plans(name, ranks // team_size, batch, layers, fixed=fixed, min_depth=min_depth)
            matching = [plan for plan in shapes if _has_sizes(plan, fixed) and (team_size == 1 or plan.flushes)]
            plans += [replace(plan, tensor=team_size, layout=layout) for plan in matching]
    allowed = [plan for plan in plans if (without_flush or plan.flushes) and (not compiles or is_compilable(plan))]
    if not allowed:
        fixed |= ({} if tensor == 1 else {"tensor": tensor}) | ({"layout": layout} if layout else {})
        settings = "".join(f", {name}: {value}" for name, value in fixed.items())
        kind = "schedule" if without_flush else "schedule with a flush"
        fact = f"no {kind} uses all ranks (ranks: {ranks}, batch: {batch}, layers: {layers}{settings})"
        remedy = "choose a batch with more divisors, another number of ranks, or fix fewer settings"
        stale = ", or let `python -m pipelined plan --stale` look at those without a flush" if plans else ""
        raise UsageError(f"{fact}; {remedy}{stale}")
    for plan in allowed:
        yield from (Candidate(plan, recompute) for recompute in recompute_choices)


def data_parallel(ranks: int, batch: int) -> Plan | None:
    """Plain data parallelism, the baseline: each rank holds the model, and its share of the batch is a microbatch."""
    return None if batch % ranks else Plan(ONE_STAGE, 1, ranks, batch // ranks, 1)


def _team_sizes(ranks: int, tensor: int | str, layout: str) -> list[int]:
    """The ranks of a worker to try; all divide the ranks."""
    if isinstance(tensor, int):
        return [tensor] if ranks % tensor == 0 else []
    sizes = divisors(ranks)
    return sizes[1:] if layout else sizes  # one rank would drop the layout


def _has_sizes(plan: Plan, fixed: Mapping[str, Any]) -> bool:
    return all(size == fixed.get(name, size) for name, size in plan.sizes.items())


def _schedule_plans(
    name: str, ranks: int, batch: int, layers: int, *, fixed: Mapping[str, Any], min_depth: int
) -> Iterator[Plan]:
    """The plans of one schedule; with `min_depth` 2 `ONE_STAGE` stands for those of a single stage."""
    for depth in range(min_depth, min(layers, ranks * MAX_CHUNKS) + 1):
        for knobs in _variants(name, depth, batch, fixed):
            workers = _count_workers(name, depth, batch, knobs)
            if workers is None or ranks % workers:
                continue
            width = ranks // workers
            if batch % width:
                continue
            for microbatch_size in divisors(batch // width):
                microbatches = batch // width // microbatch_size
                plan = _plan_or_none(name, depth, width, microbatch_size, microbatches, knobs=knobs)
                if plan is not None and knobs in _variants(name, depth, microbatches, fixed):
                    yield plan


def _count_workers(name: str, depth: int, batch: int, knobs: Mapping[str, Any]) -> int | None:
    """The workers of a pipeline, equal for all numbers of microbatches; None: the schedule refuses all numbers."""
    for microbatches in (depth, *divisors(batch)):
        plan = _plan_or_none(name, depth, 1, 2, microbatches, knobs=knobs)
        if plan is not None:
            return plan.stage_map.workers
    return None


def _variants(name: str, depth: int, microbatches: int, fixed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The knobs to try with a schedule: those that the user fixed, and with them one of its open knobs at a time."""
    chosen = {knob.name: fixed[knob.name] for knob in knobs_of(name) if knob.name in fixed}
    open_knobs = [knob for knob in own_knobs(find(name)) if knob.name not in fixed]
    return [chosen] + [{**chosen, knob.name: value} for knob in open_knobs for value in knob.tries(depth, microbatches)]


def _plan_or_none(
    name: str, depth: int, width: int, microbatch_size: int, microbatches: int, *, knobs: Mapping[str, Any]
) -> Plan | None:
    """The plan, or None if the schedule refuses the shape or the microbatch cannot be cut."""
    try:
        plan = Plan(name, depth, width, microbatch_size, microbatches, knobs=knobs)
        return plan if plan.stage_map else None
    except UsageError:
        return None
