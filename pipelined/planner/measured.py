"""A search with costs that are measured on the ranks of the job."""

import asyncio
from dataclasses import dataclass
from math import inf
from typing import Any

from pipelined.actors.agree import agree
from pipelined.aio.clock import RealClock
from pipelined.measurement.effort import THOROUGH, Effort
from pipelined.planner.model_to_plan import ModelToPlan
from pipelined.planner.request import SearchRequest
from pipelined.planner.search import SearchResult, search
from pipelined.process.launch import Launch
from pipelined.process.reporting.progress import Say, say_nothing
from pipelined.simulation import Machine
from transports import Transport


@dataclass(frozen=True, kw_only=True)
class MeasuredSearch:
    """A measurement on all ranks, and a search on rank 0.

    Args:
        sizes: microbatch sizes to time, in sequences.
        machine: the machine that gives the links if there is only one rank.
        ranks: the number of ranks to plan for.
        memory_limit: bytes that a rank may hold.
        without_flush: whether to include schedules without a flush.
        effort: the sizes and repetitions of the measurement.
        max_seconds: the most seconds of the search; it then returns the best plans so far.
        progress: called with lines of progress.
    """

    model: ModelToPlan
    launch: Launch
    sizes: list[int]
    machine: Machine
    ranks: int
    memory_limit: float
    without_flush: bool = False
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
            stated=self.machine,
            ranks=self.ranks,
            progress=self.progress,
            effort=self.effort,
        )

        def searched() -> tuple[SearchResult, dict[str, Any]] | None:
            if measurement is None:
                return None
            clock = RealClock()
            end = clock.now() + self.max_seconds
            limits = self.ranks, self.memory_limit, self.without_flush
            request = SearchRequest(self.model, measurement.costs, measurement.machine, *limits)
            return search(request, self.progress, lambda: clock.now() > end), measurement.plain

        return await agree(transport, "search", asyncio.to_thread(searched))
