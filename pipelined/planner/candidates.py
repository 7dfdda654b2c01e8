"""The candidates of a search: every schedule, T, D, W, B, N and recomputation for a number of ranks and a batch.

All candidates train on the same batch with the losses of one process. Schedules without a flush have other losses, so
they are included only on request, and their label says so.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipelined.errors import UsageError
from pipelined.programs.plan import Plan
from pipelined.schedules import find, knobs_of, known
from pipelined.schedules.registry import declared
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
    splitting = divisors(ranks)[1:] if layout else divisors(ranks)  # one rank would drop the layout
    teams = splitting if tensor == AUTO else [tensor] if ranks % tensor == 0 else []
    recompute = [fixed.pop("recompute")] if "recompute" in fixed else [False, True]
    names = [fixed["schedule"]] if "schedule" in fixed else known()
    for name in names:
        find(name)
    every = [
        replace(plan, tensor=team, layout=layout)
        for team in teams
        for name in names
        for plan in _of(name, ranks // team, batch, layers, fixed=fixed, deep=len(names) > 1 and name != ONE_STAGE)
        if all(size == fixed.get(name, size) for name, size in plan.sizes.items()) and (team == 1 or plan.flushes)
    ]
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
        yield from (Candidate(plan, again) for again in recompute)


def data_parallel(ranks: int, batch: int) -> Plan | None:
    """Plain data parallelism, the baseline: every rank holds the whole model and takes its share as one microbatch."""
    return None if batch % ranks else Plan(ONE_STAGE, 1, ranks, batch // ranks, 1)


def _of(name: str, ranks: int, batch: int, layers: int, *, fixed: Mapping[str, Any], deep: bool) -> Iterator[Plan]:
    """The plans of one schedule; deep: without those of a single stage, as `ONE_STAGE` stands for them."""
    for depth in range(2 if deep else 1, min(layers, ranks * MAX_CHUNKS) + 1):
        for knobs in _variants(name, depth, batch, fixed):
            counts = (depth, *divisors(batch))  # a schedule may refuse some, and all give the same workers
            probe = next(filter(None, (_try(name, depth, 1, 2, number, knobs=knobs) for number in counts)), None)
            if probe is None or ranks % probe.stage_map.workers:
                continue
            width = ranks // probe.stage_map.workers
            for microbatch_size in divisors(batch // width if batch % width == 0 else 0):
                microbatches = batch // width // microbatch_size
                plan = _try(name, depth, width, microbatch_size, microbatches, knobs=knobs)
                if plan is not None and knobs in _variants(name, depth, microbatches, fixed):
                    yield plan


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
