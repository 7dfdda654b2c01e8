"""What a plan may take on a machine of so much memory, and which microbatches are then worth timing. No torch."""

import os
from collections.abc import Iterable, Sequence

from pipelined.errors import UsageError
from pipelined.planner.bounds import least_bytes
from pipelined.planner.candidates import Candidate, candidates
from pipelined.planner.planned_model import PlannedModel


def share_of_memory(ranks: int, gpus: Sequence[int] = ()) -> float:
    """Bytes for each of so many ranks on this machine: of its GPUs' memory where there are any, else of its own.

    Args:
        gpus: bytes of each.
    """
    if gpus:
        return gpus[0] / max(1, -(-ranks // len(gpus)))
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / max(1, ranks)


def sizes_that_fit(model: PlannedModel, ranks: int, limit: float, stale: bool = False) -> list[int]:
    """The microbatches of every plan that may fit, in sequences as the schedule cuts them, ascending.

    Args:
        stale: with schedules without a flush.
    Raises:
        UsageError: no plan uses all ranks, or none fits the memory.
    """
    every = candidates(ranks, model.batch, len(model.layer_costs), model.fixed, stale)
    sizes = {c.plan.rows for c in _alike(every) if least_bytes(c, model.workload(c.plan)) <= limit}
    if not sizes:
        raise UsageError(f"no plan fits the memory (limit: {limit / 2**20:.1f} MiB a rank); raise --memory-limit")
    return sorted(sizes)


def _alike(every: Iterable[Candidate]) -> Iterable[Candidate]:
    """One of all that cut the model and the batch in the same way."""
    plans: dict[tuple[int, int, int], Candidate] = {}
    for candidate in every:
        plan = candidate.plan
        plans.setdefault((plan.depth, plan.rows, plan.layout.parts), candidate)
    return plans.values()
