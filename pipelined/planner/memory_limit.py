"""The memory limit of a rank, and the microbatch sizes that fit it. No torch."""

import asyncio
import math
from collections.abc import Iterable, Sequence
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
    """The microbatch sizes of all plans that may fit, in sequences, after halving by the schedule; ascending.

    Of a team's microbatch it is the share of one rank.

    Args:
        without_flush: include schedules without a flush.
    Raises:
        UsageError: no plan uses all ranks, or none fits the memory.
    """
    every = candidates(ranks, model.batch, len(model.layer_costs), model.fixed, without_flush)
    possible = [candidate for candidate in _one_of_each_shape(every) if can_split(model, candidate.plan)]
    if not possible:
        raise unsplittable_error(model)
    held = [(_lightest_bytes(model, candidate, limit), candidate.plan) for candidate in possible]
    sizes = {max(1, plan.rows // plan.tensor) for nbytes, plan in held if nbytes <= limit}
    if not sizes:
        raise memory_error(limit, min(nbytes for nbytes, _ in held))
    return sorted(sizes)


def memory_error(limit: float, least: float) -> UsageError:
    """The error where no plan fits the memory: a limit in bytes of a rank, and the least of all plans."""
    fact = f"no plan fits the memory (limit: {in_bytes(limit)} a rank, the least that one takes: {in_bytes(least)}"
    return UsageError(f"{fact} or more); raise `memory_limit=`, or use more ranks")


def _lightest_bytes(model: PlannerModel, candidate: Candidate, limit: float) -> float:
    """The least bytes of a rank, of the first state of the candidate's teams that may fit, or else of the lightest."""
    plan: Plan | None = candidate.plan
    least = math.inf
    while plan is not None and least > limit:
        least = min(least, least_bytes(replace(candidate, plan=plan), workload_and_moves(model, plan, Machine())[0]))
        plan = require_split_plans(model).lighter(plan) if plan.tensor > 1 else None
    return least


async def agreed_limit(transport: Transport, limit: float) -> float:
    """The least of the ranks' limits, on all ranks: a plan may give any stage to any of them."""
    limits = await gather_objects(transport, "limits", limit)
    return float(await broadcast_object(transport, "limit", min(limits, default=None)))


async def agreed_sizes(
    transport: Transport, model: PlannerModel, ranks: int, limit: float, without_flush: bool = False
) -> list[int]:
    """As `sizes_that_fit`, on all ranks together: if there are none, all raise the same error.

    Args:
        limit: equal on all ranks.
    Raises:
        AgreedError: as there.
    """
    return await agree(transport, "sizes", asyncio.to_thread(sizes_that_fit, model, ranks, limit, without_flush))


def _one_of_each_shape(every: Iterable[Candidate]) -> Iterable[Candidate]:
    """One candidate for each way to cut the model and the batch."""
    plans: dict[tuple[int, ...], Candidate] = {}
    for candidate in every:
        plan = candidate.plan
        plans.setdefault((plan.tensor, plan.depth, plan.rows, plan.stage_map.pieces), candidate)
    return plans.values()
