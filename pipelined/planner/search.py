"""The search: simulate candidates in the order of their bounds, until no remaining one can be among the best.

A candidate is left out only if it cannot be among the best or does not fit the memory, so the result equals that of
simulating all. The search is deterministic: it depends only on its arguments.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pipelined.errors import UsageError
from pipelined.planner.bounds import least_bytes, least_seconds
from pipelined.planner.candidates import Candidate, candidates, data_parallel
from pipelined.planner.costs import ModelCosts, priced
from pipelined.planner.planned_model import PlannedModel
from pipelined.programs.plan import Plan
from pipelined.simulation.job import with_costs
from pipelined.simulation.machine import Machine
from pipelined.simulation.simulator import Simulated, simulate
from pipelined.simulation.workload import Workload

BEST = 10
"""The number of plans in a result."""


@dataclass(frozen=True)
class Outcome:
    """One plan and its prediction.

    Args:
        tried_s: measured seconds of a step; None if the plan was not tried.
    """

    candidate: Candidate
    simulated: Simulated
    tried_s: float | None = None

    @property
    def step_s(self) -> float:
        return self.simulated.step_seconds

    @property
    def expected_s(self) -> float:
        """The measured seconds of a step, or the predicted ones if the plan was not tried."""
        return self.step_s if self.tried_s is None else self.tried_s

    @property
    def memory(self) -> float:
        """Bytes of the fullest rank."""
        return max(rank.total for rank in self.simulated.memory)

    @property
    def order(self) -> tuple[float, float, int, str]:
        """The sort key: seconds of a step, then memory, stages, name."""
        plan = self.candidate.plan
        return self.step_s, self.memory, plan.depth, plan.schedule


@dataclass(frozen=True)
class SearchRequest:
    """The arguments of a search.

    Args:
        ranks: the number of ranks; every plan uses all of them.
        memory_limit: bytes that a rank may hold.
        asynchronous: whether to include schedules without a flush.
    """

    model: PlannedModel
    costs: ModelCosts
    machine: Machine
    ranks: int
    memory_limit: float = float("inf")
    asynchronous: bool = False

    @property
    def all_reduce(self) -> str:
        """The algorithm that prices gradient sums; "native" has no closed form and is priced as "auto"."""
        return "auto" if self.model.all_reduce == "native" else self.model.all_reduce

    def simulate(self, candidate: Candidate) -> Outcome:
        """Simulate one step of a candidate; the plan of the outcome has the costs, so that training sums as here."""
        again, workload = candidate.recompute, self.workload(candidate.plan)
        plan = with_costs(candidate.plan, workload, self.machine, again)
        simulated = simulate(plan, workload, self.machine, recompute=again, all_reduce=self.all_reduce)
        return Outcome(Candidate(plan, again), simulated)

    def workload(self, plan: Plan) -> Workload:
        """The workload of a plan."""
        return priced(self.model, plan, self.costs)


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Args:
        best: the best plans; the first is the chosen one.
        baseline: plain data parallelism with one microbatch per rank; None if the ranks do not divide the batch.
        considered: the number of candidates.
        too_big: the number of candidates that do not fit the memory, by their bound or by simulation.
        simulated: the number of simulated candidates; no other one can be among the best.
    """

    request: SearchRequest
    best: list[Outcome]
    baseline: Outcome | None
    considered: int
    too_big: int
    simulated: int

    @property
    def chosen(self) -> Outcome:
        return self.best[0]

    def worth_trying(self, most: int) -> list[Outcome]:
        """The best `most` plans with a flush, plus data parallelism if it fits the memory and the user's settings."""
        every = [one for one in self.best if one.candidate.plan.flushes][:most]
        other, fixed = self.baseline, self.request.model.fixed
        if not most or other is None or other.memory > self.request.memory_limit:
            return every
        known = {**other.candidate.plan.plain(), "recompute": other.candidate.recompute}
        if any(known.get(name) != value for name, value in fixed.items()):
            return every
        return every if other.candidate in [one.candidate for one in every] else [*every, other]

    def tried(self, outcomes: Sequence[Outcome], seconds: Sequence[float]) -> "SearchResult":
        """The same result with the tried plans first, the fastest of them at the top."""
        found = [replace(one, tried_s=taken) for one, taken in zip(outcomes, seconds, strict=True)]
        rest = [one for one in self.best if one not in outcomes]
        return replace(self, best=[*sorted(found, key=lambda one: one.expected_s), *rest][:BEST])


@dataclass
class _Found:
    """The best plans so far."""

    limit: float
    best: list[Outcome] = field(default_factory=list)
    simulated: int = 0
    too_big: int = 0

    @property
    def worst(self) -> float:
        return self.best[BEST - 1].step_s if len(self.best) >= BEST else float("inf")

    def take(self, outcome: Outcome) -> None:
        self.simulated += 1
        if outcome.memory > self.limit:
            self.too_big += 1
        else:
            self.best = sorted([*self.best, outcome], key=lambda one: one.order)[:BEST]


def search(
    request: SearchRequest,
    progress: Callable[[str], None] = lambda line: None,
    stop: Callable[[], bool] = lambda: False,
) -> SearchResult:
    """Find the plans with the shortest steps. Where a loop is running, call this through `asyncio.to_thread`.

    Args:
        progress: called with lines of progress.
        stop: called before each simulation once a plan fits; True ends the search early, so that a better plan may
            be missed.
    Raises:
        UsageError: no plan uses all ranks, or none fits the memory.
    Cost: about 0.1 ms per candidate, plus the cost of each simulation.
    """
    model = request.model
    every = list(candidates(request.ranks, model.batch, len(model.layer_costs), model.fixed, request.asynchronous))
    fitting, least = _bounded(request, every)
    if not fitting:
        raise _too_big(request, least)
    found = _Found(request.memory_limit, too_big=len(every) - len(fitting))
    for bound, candidate in fitting:
        if bound > found.worst or (found.best and stop()):
            break
        found.take(request.simulate(candidate))
        progress(f"simulated {found.simulated} of {len(fitting)}: the best takes {_best(found)}")
    if not found.best:
        raise _too_big(request, least)
    return SearchResult(request, found.best, _baseline(request), len(every), found.too_big, found.simulated)


def _bounded(request: SearchRequest, every: Sequence[Candidate]) -> tuple[list[tuple[float, Candidate]], float]:
    """The candidates that may fit, the lowest bound first; and the least bytes over all candidates."""
    fitting, least = [], float("inf")
    workloads: dict[tuple[int, int, int], Workload] = {}
    for candidate in every:
        plan = candidate.plan
        key = plan.depth, plan.microbatch, plan.layout.parts
        workload = workloads[key] = workloads.get(key) or request.workload(plan)
        nbytes = least_bytes(candidate, workload)
        least = min(least, nbytes)
        if nbytes <= request.memory_limit:
            fitting.append((least_seconds(candidate, workload, request.machine, request.all_reduce), candidate))
    return sorted(fitting, key=lambda pair: pair[0]), least


def _baseline(request: SearchRequest) -> Outcome | None:
    plan = data_parallel(request.ranks, request.model.batch)
    return None if plan is None else request.simulate(Candidate(plan))


def _best(found: _Found) -> str:
    return f"{found.best[0].step_s * 1e3:.1f} ms" if found.best else "more memory than there is"


def _too_big(request: SearchRequest, least: float) -> UsageError:
    fact = f"no plan fits the memory (limit: {request.memory_limit / 2**20:.1f} MiB a rank, the least that one takes: "
    return UsageError(f"{fact}{least / 2**20:.1f} MiB or more); raise `memory_limit=`, or use more ranks")
