"""A plan with costs that are measured on the ranks of the job: measure, search, try."""

import asyncio
from dataclasses import dataclass
from math import inf
from typing import Any

from collectives.objects import broadcast_object
from pipelined.actors.agree import agree
from pipelined.aio.clock import RealClock
from pipelined.measurement.effort import THOROUGH, Effort
from pipelined.planner.explain import plan_file_of
from pipelined.planner.memory_limit import agreed_limit, agreed_sizes
from pipelined.planner.plan_file import PlanFile
from pipelined.planner.plan_search import SearchResult, search
from pipelined.planner.planner_model import PlannerModel
from pipelined.planner.request import PlanRequest, SearchRequest
from pipelined.process.launch import Launch
from pipelined.process.reporting.progress import Say, say_nothing
from transports import Transport


@dataclass(frozen=True, kw_only=True)
class MeasuredSearch:
    """A measurement on all ranks, and a search on rank 0.

    Args:
        request: the ranks to plan for; its machine gives the links if there is only one rank.
        memory_limit: bytes that a rank may hold, equal on all ranks.
        sizes: microbatch sizes to time, in sequences.
        effort: the sizes and repetitions of the measurement.
        max_seconds: the most seconds of the search; it then returns the best candidates so far.
        progress: called with lines of progress.
    """

    model: PlannerModel
    launch: Launch
    request: PlanRequest
    memory_limit: float
    sizes: list[int]
    effort: Effort = THOROUGH
    max_seconds: float = inf
    progress: Say = say_nothing

    async def run(self, transport: Transport) -> tuple[SearchResult, dict[str, Any]] | None:
        """The result and the measured costs as JSON on rank 0, None elsewhere; all ranks call this together.

        Raises:
            AgreedError: no plan uses all ranks, or none fits the memory.
        """
        from pipelined.measurement.measure import measure  # needs torch

        measurement = await measure(
            transport,
            self.model,
            self.launch,
            sizes=self.sizes,
            machine=self.request.machine,
            ranks=self.request.ranks,
            progress=self.progress,
            effort=self.effort,
        )

        def search_candidates() -> tuple[SearchResult, dict[str, Any]] | None:
            if measurement is None:
                return None
            clock = RealClock()
            end = clock.now() + self.max_seconds
            request = SearchRequest(
                self.model,
                measurement.costs,
                measurement.machine,
                self.request.ranks,
                memory_limit=self.memory_limit,
                without_flush=self.request.without_flush,
            )
            return search(request, self.progress, lambda: clock.now() > end), measurement.values

        return await agree(transport, "search", asyncio.to_thread(search_candidates))


async def find_measured(
    transport: Transport, model: PlannerModel, launch: Launch, request: PlanRequest, progress: Say = say_nothing
) -> tuple[PlanFile, SearchResult | None]:
    """Measure thoroughly, search, run the best candidates for some training steps, and take the fastest.

    All ranks call this together and get the same plan; the result of the search is None except on rank 0.

    Args:
        progress: called on rank 0 with lines of progress.
    Raises:
        AgreedError: no plan fits the memory, or no plan matches the user's settings.
    """
    from pipelined.measurement.measure import gpu_bytes
    from pipelined.planner.trial import try_best

    limit = await agreed_limit(transport, request.memory_limit_on(launch, gpu_bytes()))
    progress = progress if transport.rank == 0 else say_nothing
    measured_search = MeasuredSearch(
        model=model,
        launch=launch,
        request=request,
        memory_limit=limit,
        sizes=await agreed_sizes(transport, model, request.ranks, limit, request.without_flush),
        progress=progress,
    )
    result, costs = await measured_search.run(transport) or (None, {})
    tries = request.trials_on(transport.world_size)
    if tries:
        result = await try_best(transport, model, launch, result, most=tries, progress=progress)
    if result is not None:
        plan_file = plan_file_of(result, costs)
        await broadcast_object(transport, "planned", plan_file.to_dict())
        return plan_file, result
    document = await broadcast_object(transport, "planned", None)
    return PlanFile.of(document, model.fixed.get("schedule")), None
