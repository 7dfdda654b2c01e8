"""The candidates of a search: every schedule, D, W, B, N and recomputation for a number of ranks and a batch.

All candidates train on the same batch with the losses of one process. Schedules without a flush have other losses, so
they are included only on request, and their label says so.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipelined.errors import UsageError
from pipelined.programs.plan import Plan
from pipelined.schedules import SCALES, find, known

CHUNKS = (2, 4)
"""Numbers of chunks to try, for a schedule that takes several stages of a pipe on a worker."""
STALE = ", not exact"
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
        pipes = f" {plan.layout.pipes} pipes" if plan.pipes > 2 else ""
        chunks = f" {plan.chunks} chunks" if plan.chunks > 1 else ""
        scale = f" {plan.scale}" if plan.scale != "direct" else ""
        stale = "" if plan.flushes else STALE
        return f"{plan.schedule}{pipes}{chunks}{scale}{stale}"


def candidates(
    ranks: int, batch: int, layers: int, fixed: Mapping[str, Any] | None = None, stale: bool = False
) -> Iterator[Candidate]:
    """All candidates.

    Args:
        ranks: the number of ranks; every plan uses all of them.
        batch: sequences per step, B·N·W.
        layers: the most stages of a plan.
        fixed: settings that the user has chosen: fields of `Plan`, and `recompute`.
        stale: include schedules without a flush.
    Raises:
        UsageError: no such schedule, or no plan matches.
    """
    fixed = dict(fixed or {})
    recompute = [fixed.pop("recompute")] if "recompute" in fixed else [False, True]
    names = [fixed["schedule"]] if "schedule" in fixed else known()
    for name in names:
        find(name)
    every = dict.fromkeys(plan for name in names for plan in _of(name, ranks, batch, layers, alone=len(names) == 1))
    every = [plan for plan in every if all(_chosen(plan, name) == value for name, value in fixed.items())]
    found = [plan for plan in every if stale or plan.flushes]
    if not found:
        asked = "".join(f", {name}: {value}" for name, value in fixed.items())
        kind = "schedule" if stale else "schedule with a flush"
        fact = f"no {kind} uses all ranks (ranks: {ranks}, batch: {batch}, layers: {layers}{asked})"
        remedy = "choose a batch with more divisors, another number of ranks, or ask for less"
        others = ", or let `python -m pipelined plan --stale` look at those without a flush" if every else ""
        raise UsageError(f"{fact}; {remedy}{others}")
    for plan in found:
        yield from (Candidate(plan, again) for again in recompute)


def data_parallel(ranks: int, batch: int) -> Plan | None:
    """Plain data parallelism, the baseline: every rank holds the whole model and takes its share as one microbatch."""
    return None if batch % ranks else Plan(ONE_STAGE, 1, ranks, batch // ranks, 1)


def _of(name: str, ranks: int, batch: int, layers: int, alone: bool) -> Iterator[Plan]:
    for depth in range(1 if alone or name == ONE_STAGE else 2, min(layers, ranks * max(CHUNKS)) + 1):
        for pipes, chunks, scale in _variants(name, depth):
            group = _try(name, depth, 1, 2, depth, pipes, chunks, scale)
            if group is None or ranks % group.layout.workers:
                continue
            width = ranks // group.layout.workers
            for microbatch in _divisors(batch // width if batch % width == 0 else 0):
                plan = _try(name, depth, width, microbatch, batch // width // microbatch, pipes, chunks, scale)
                if plan is not None and not (scale == "forward-doubling" and plan.microbatches < 2 * depth):
                    yield plan  # forward doubling with fewer than 2D microbatches doubles nothing


def _variants(name: str, depth: int) -> Iterator[tuple[int, int, str]]:
    """(pipes, chunks, scale) to try with a schedule at a depth; the schedule may refuse some of them."""
    yield 0, 1, "direct"
    plain = _try(name, depth, 1, 1, depth)
    if plain is None or plain.layout.workers == depth:  # else chunks 1 already folds the stages
        yield from ((0, chunks, "direct") for chunks in CHUNKS if depth % chunks == 0)
    yield from ((0, 1, scale) for scale in SCALES if scale != "direct")
    yield from ((2 * each_way, 1, "direct") for each_way in range(2, depth // 2 + 1) if depth // 2 % each_way == 0)


def _try(name: str, *shape: int | str) -> Plan | None:
    """The plan, or None if the schedule refuses the shape or the microbatch cannot be cut."""
    try:
        plan = Plan(name, *shape)  # type: ignore[arg-type]
        return plan if plan.layout else None
    except UsageError:
        return None


def _chosen(plan: Plan, name: str) -> int | str:
    """A field of a plan; for `pipes` the actual number, where the plan may have 0 (the schedule's choice)."""
    return plan.layout.pipes if name == "pipes" else getattr(plan, name)


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
