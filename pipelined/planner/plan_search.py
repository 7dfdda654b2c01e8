"""The search: simulate candidates in the order of their bounds, until no remaining candidate can be among the best.

A candidate is left out only if its bound says that it cannot be among the best, or it does not fit the memory. So with
exact costs the result is that of simulating all candidates, if a shorter stage never makes a training step longer:
with shared cores, and with `chimera_w`, it may. The search is deterministic: it depends only on its arguments.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from pipelined.planner.candidate_queue import CandidateQueue
from pipelined.planner.candidates import AUTO, Candidate, candidates, data_parallel
from pipelined.planner.memory_limit import memory_error
from pipelined.planner.model_costs import unsplittable_error
from pipelined.planner.request import SearchRequest, SimulatedCandidate
from pipelined.process.reporting.progress import Say, say_nothing

BEST = 10
"""The number of outcomes in a result."""


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The result of a search.

    Args:
        best: the outcomes of the best candidates; the first is chosen.
        baseline: plain data parallelism with one microbatch per rank; None if the ranks do not divide the batch.
        considered: the number of candidates.
        too_big: the number of candidates that do not fit the memory, by their bound or by simulation.
        simulated: the number of simulated candidates; no other candidate can be among the best.
        tolerance: no candidate is faster than the chosen one by more than this share; None: the search was stopped.
    """

    request: SearchRequest
    best: list[SimulatedCandidate]
    baseline: SimulatedCandidate | None
    considered: int
    too_big: int
    simulated: int
    tolerance: float | None = 0.0

    @property
    def chosen(self) -> SimulatedCandidate:
        return self.best[0]

    def worth_trying(self, most: int) -> list[SimulatedCandidate]:
        """The best `most` outcomes with a flush; with data parallelism, if the memory and the settings allow it."""
        outcomes = [outcome for outcome in self.best if outcome.candidate.plan.flushes][:most]
        baseline = self.baseline
        if not most or baseline is None or not self._is_allowed(baseline):
            return outcomes
        if baseline.candidate in [outcome.candidate for outcome in outcomes]:
            return outcomes
        return [*outcomes, baseline]

    def _is_allowed(self, outcome: SimulatedCandidate) -> bool:
        """Whether an outcome fits the memory and has every setting that the user has fixed."""
        settings = {**outcome.candidate.plan.to_dict(), "recompute": outcome.candidate.recompute, "compile": True}
        fixed = {name: value for name, value in self.request.model.fixed.items() if value != AUTO}
        keeps_fixed = all(settings.get(name) == value for name, value in fixed.items())
        return keeps_fixed and outcome.memory <= self.request.memory_limit

    def with_trials(self, outcomes: Sequence[SimulatedCandidate], seconds: Sequence[float]) -> "SearchResult":
        """The same result with the tried candidates first, the fastest of them at the top."""
        tried = [replace(outcome, tried_s=tried_s) for outcome, tried_s in zip(outcomes, seconds, strict=True)]
        untried = [outcome for outcome in self.best if outcome not in outcomes]
        return replace(self, best=[*sorted(tried, key=lambda outcome: outcome.expected_s), *untried][:BEST])


@dataclass
class _BestSoFar:
    """The best outcomes so far."""

    limit: float
    tolerance: float
    outcomes: list[SimulatedCandidate] = field(default_factory=list)
    simulated: int = 0
    too_big: int = 0

    @property
    def worst(self) -> float:
        """Seconds of a training step; a candidate with a higher bound changes nothing.

        With exact costs it would not be among the best; else it is not clearly faster than the first of the best.
        """
        if len(self.outcomes) < BEST:
            return inf
        return self.outcomes[0].step_s / (1 + self.tolerance) if self.tolerance else self.outcomes[-1].step_s

    def add(self, outcome: SimulatedCandidate) -> None:
        self.simulated += 1
        if outcome.memory > self.limit:
            self.too_big += 1
        else:
            self.outcomes = sorted([*self.outcomes, outcome], key=lambda outcome: outcome.order)[:BEST]

    def __str__(self) -> str:
        return f"{self.outcomes[0].step_s * 1e3:.1f} ms" if self.outcomes else "more memory than there is"


def search(
    request: SearchRequest, progress: Say = say_nothing, stop: Callable[[], bool] = lambda: False
) -> SearchResult:
    """Find the candidates with the shortest training steps. In an event loop call it through `asyncio.to_thread`.

    Args:
        progress: called with lines of progress.
        stop: called before each entry of the queue once a candidate fits; True ends the search early, so that a
            better candidate may be missed.
    Raises:
        UsageError: no plan uses all ranks, or none fits the memory.
    Cost: about 0.1 ms per candidate, plus the cost of each simulation.
    """
    model = request.model
    layers = len(model.layer_costs)
    queue = CandidateQueue(request)
    for candidate in candidates(request.ranks, model.batch, layers, model.fixed, request.without_flush):
        queue.add(candidate)
    best = _BestSoFar(request.memory_limit, request.tolerance)
    stopped = False
    while queue.waiting and queue.next_bound <= best.worst:
        stopped = bool(best.outcomes) and stop()
        if stopped:
            break
        promising = queue.take(best.worst)
        if promising is not None:
            best.add(request.simulate(promising))
            progress(f"simulated {best.simulated} of {best.simulated + len(queue.waiting)}: the best takes {best}")
    if not best.outcomes:
        if queue.least_bytes == inf:
            raise unsplittable_error(model)
        raise memory_error(request.memory_limit, queue.least_bytes)
    plan = data_parallel(request.ranks, model.batch)
    return SearchResult(
        request=request,
        best=best.outcomes,
        baseline=None if plan is None else request.simulate(Candidate(plan)),
        considered=queue.considered,
        too_big=queue.too_big + best.too_big,
        simulated=best.simulated,
        tolerance=None if stopped else request.tolerance,
    )
