"""The memory limit of a rank, and the microbatch sizes that fit it. No torch."""

import asyncio
import math
from collections.abc import Iterable, Sequence

from pipelined.actors.agree import agree, broadcast, gather
from pipelined.actors.host_memory import host_memory
from pipelined.errors import UsageError
from pipelined.planner.bounds import least_bytes
from pipelined.planner.candidates import Candidate, candidates
from pipelined.planner.costs import can_split, not_split, sizes_of
from pipelined.planner.planned_model import PlannedModel
from pipelined.simulation.machine import Machine
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


def sizes_that_fit(model: PlannedModel, ranks: int, limit: float, asynchronous: bool = False) -> list[int]:
    """The microbatch sizes of all plans that may fit, in sequences, after halving by the schedule; ascending.

    Of a team's microbatch it is the share of one rank.

    Args:
        asynchronous: include schedules without a flush.
    Raises:
        UsageError: no plan uses all ranks, or none fits the memory.
    """
    every = candidates(ranks, model.batch, len(model.layer_costs), model.fixed, asynchronous)
    possible = [c for c in _alike(every) if can_split(model, c.plan)]
    if not possible:
        raise not_split(model)
    fitting = [c.plan for c in possible if least_bytes(c, sizes_of(model, c.plan, Machine())[0]) <= limit]
    sizes = {max(1, plan.rows // plan.tensor) for plan in fitting}
    if not sizes:
        raise UsageError(f"no plan fits the memory (limit: {limit / 2**20:.1f} MiB a rank); raise `memory_limit=`")
    return sorted(sizes)


async def agreed_limit(transport: Transport, limit: float) -> float:
    """The least of the ranks' limits, on all ranks: a plan may give any stage to any of them."""
    limits = await gather(transport, "limits", limit)
    return float(await broadcast(transport, "limit", min(limits, default=None)))


async def agreed_sizes(
    transport: Transport, model: PlannedModel, ranks: int, limit: float, asynchronous: bool = False
) -> list[int]:
    """As `sizes_that_fit`, on all ranks together: if there are none, all raise the same error.

    Args:
        limit: equal on all ranks.
    Raises:
        AgreedError: as there.
    """
    return await agree(transport, "sizes", asyncio.to_thread(sizes_that_fit, model, ranks, limit, asynchronous))


def _alike(every: Iterable[Candidate]) -> Iterable[Candidate]:
    """One candidate for each way to cut the model and the batch."""
    plans: dict[tuple[int, ...], Candidate] = {}
    for candidate in every:
        plan = candidate.plan
        plans.setdefault((plan.tensor, plan.depth, plan.rows, plan.stage_map.parts), candidate)
    return plans.values()
