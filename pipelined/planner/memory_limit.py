"""The memory limit of a rank, and the microbatch sizes that fit it. No torch."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace

from collectives.objects import broadcast_object, gather_objects
from pipelined.actors.agree import agree
from pipelined.actors.device.host_memory import host_memory
from pipelined.errors import UsageError, in_bytes
from pipelined.planner.bounds import least_bytes
from pipelined.planner.candidates import Candidate, candidates
from pipelined.planner.model_costs import can_split, require_split_plans, unsplittable_error, workload_and_moves
from pipelined.planner.planner_model import PlannerModel
from pipelined.programs.plan import Plan
from pipelined.simulation import Machine
from transports import Transport


def share_of_memory(ranks: int, gpus: Sequence[int] = ()) -> float:
    """Bytes for each of `ranks` ranks on this machine: a share of GPU memory, or of main memory without a GPU.

    Args:
        gpus: bytes of memory of each GPU.
    """
    if gpus:
        return gpus[0] / max(1, -(-ranks // len(gpus)))
    total, _ = host_memory()
    return (math.inf if total is None else total) / max(1, ranks)


def sizes_that_fit(model: PlannerModel, ranks: int, limit: float, without_flush: bool = False) -> list[int]:
    """The microbatch sizes of all plans that may fit, in sequences, ascending.

    They are counted after the schedule halves them; for a team, one rank's share.

    Args:
        without_flush: include schedules without a flush.
    Raises:
        UsageError: no plan uses all ranks, or none fits the memory.
    """
    by_shape = dict[tuple[int, ...], Candidate]()  # one candidate for each way to cut the model and the batch
    for candidate in candidates(ranks, model.batch, len(model.layer_costs), model.fixed, without_flush):
        plan = candidate.plan
        by_shape.setdefault((plan.tensor, plan.depth, plan.rows, plan.stage_map.pieces), candidate)
    splittable = [candidate for candidate in by_shape.values() if can_split(model, candidate.plan)]
    if not splittable:
        raise unsplittable_error(model)
    rank_bytes = [(_lightest_bytes(model, candidate, limit), candidate.plan) for candidate in splittable]
    sizes = {max(1, plan.rows // plan.tensor) for nbytes, plan in rank_bytes if nbytes <= limit}
    if not sizes:
        raise memory_error(limit, min(nbytes for nbytes, _ in rank_bytes))
    return sorted(sizes)


def memory_error(limit: float, least: float) -> UsageError:
    """The error where no plan fits the memory, in bytes of a rank: the limit, and the least that a plan takes."""
    fact = f"no plan fits the memory (limit: {in_bytes(limit)} a rank, the least that one takes: {in_bytes(least)}"
    return UsageError(f"{fact} or more); raise `memory_limit=`, or use more ranks")


def _lightest_bytes(model: PlannerModel, candidate: Candidate, limit: float) -> float:
    """The least bytes of a rank in the first state of ZeRO that may fit the candidate's teams, or in the lightest."""
    plan: Plan | None = candidate.plan
    least = math.inf
    while plan is not None and least > limit:
        least = min(least, least_bytes(replace(candidate, plan=plan), workload_and_moves(model, plan, Machine())[0]))
        plan = require_split_plans(model).in_next_zero_state(plan) if plan.tensor > 1 else None
    return least


async def agreed_limit(transport: Transport, limit: float) -> float:
    """The least of the ranks' limits, on all ranks: a plan may give any stage to any rank."""
    limits = await gather_objects(transport, "limits", limit)
    return float(await broadcast_object(transport, "limit", min(limits, default=None)))


async def agreed_sizes(
    transport: Transport, model: PlannerModel, ranks: int, limit: float, without_flush: bool = False
) -> list[int]:
    """As `sizes_that_fit`, on all ranks together: if no size fits, all ranks raise the same error.

    Args:
        limit: equal on all ranks.
    Raises:
        AgreedError: as `sizes_that_fit`.
    """
    return await agree(transport, "sizes", asyncio.to_thread(sizes_that_fit, model, ranks, limit, without_flush))
