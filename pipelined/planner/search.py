"""The search: simulate candidates in the order of their bounds, until no remaining one can be among the best.

A candidate is left out only if it cannot be among the best or does not fit the memory, so the result equals that of
simulating all. The search is deterministic: it depends only on its arguments.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from typing import Any

from pipelined.errors import UsageError
from pipelined.planner.bounds import least_bytes, least_of_layouts, least_seconds, peak_of
from pipelined.planner.candidates import AUTO, Candidate, candidates, data_parallel
from pipelined.planner.costs import ModelCosts, can_split, priced, split_model
from pipelined.planner.fronts import Front, held_by_layouts
from pipelined.planner.planned_model import PlannedModel, is_open
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
        """The workload of a plan; where its teams' layout is open, of no layout is any cost lower."""
        return priced(self.model, plan, self.costs, self.machine)


@dataclass(frozen=True, kw_only=True)
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
        fixed = {name: value for name, value in self.request.model.fixed.items() if value != AUTO}
        other = self.baseline
        if not most or other is None or other.memory > self.request.memory_limit:
            return every
        known = {**other.candidate.plan.plain(), "recompute": other.candidate.recompute, "compile": True}
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
    every = candidates(request.ranks, model.batch, len(model.layer_costs), model.fixed, request.asynchronous)
    found, queue = _Found(request.memory_limit), _Queue(request)
    for candidate in every:
        queue.add(candidate)
    while queue.waiting and not (found.best and stop()):
        if queue.waiting[0][0] > found.worst:
            break
        nearest = queue.take(found.worst)
        if nearest is not None:
            found.take(request.simulate(nearest))
            progress(
                f"simulated {found.simulated} of {found.simulated + len(queue.waiting)}: the best takes {_best(found)}"
            )
    if not found.best:
        raise _too_big(request, queue.least)
    considered, too_big = queue.considered, queue.too_big + found.too_big
    return SearchResult(
        request=request,
        best=found.best,
        baseline=_baseline(request),
        considered=considered,
        too_big=too_big,
        simulated=found.simulated,
    )


class _Queue:
    """The candidates that may fit, the lowest bound first.

    A plan of teams waits with even shares and free moves. When its turn comes, the front of its layouts takes its place,
    with the bound of the next of them; only the layout whose turn it is becomes a candidate.

    Attributes:
        waiting: (bound, order, candidate, the front of its open plan, if it is known), a heap.
        considered: candidates so far, each layout of a plan of teams among them.
        too_big: those that do not fit the memory.
        least: the least bytes over all candidates.
    """

    def __init__(self, request: SearchRequest):
        self.waiting: list[tuple[float, int, Candidate, Front | None]] = []
        self.considered, self.too_big, self.least = 0, 0, float("inf")
        self._request, self._order, self._workloads = request, count(), dict[tuple[Any, ...], tuple[Workload, float]]()
        self._lightened = set[str]()

    def add(self, candidate: Candidate) -> None:
        """Add a candidate if it may fit."""
        request = self._request
        if can_split(request.model, candidate.plan):
            workload, nbytes = self._held(candidate)
            self.considered, self.least = self.considered + 1, min(self.least, nbytes)
            if nbytes > request.memory_limit:
                self._leave_out(candidate)
                return
            bound = least_seconds(candidate, workload, request.machine, request.all_reduce)
            self._push(bound, candidate)

    def take(self, worst: float) -> Candidate | None:
        """The candidate with the lowest bound, of equal ones the first; None if it gives way or does not fit.

        Args:
            worst: seconds; layouts with a higher bound need not wait.
        """
        _, _, candidate, front = heappop(self.waiting)
        if not is_open(candidate.plan):
            return candidate if self._fits(candidate) else None
        if front is None:
            self.considered -= 1
            self._add_layouts(candidate, worst)
        elif front.bound == float("inf"):  # the layouts that do not fit have their turn
            self._lighten(candidate)
        else:
            self.considered -= 1
            split = front.take()
            self._push(front.bound, candidate, front, worst)
            self.add(replace(candidate, plan=replace(candidate.plan, split=split)))
        return None

    def _push(
        self, bound: float, candidate: Candidate, front: Front | None = None, worst: float = float("inf")
    ) -> None:
        if bound <= worst and bound < float("inf"):
            heappush(self.waiting, (bound, next(self._order), candidate, front))

    def _fits(self, candidate: Candidate) -> bool:
        """Whether the memory suffices; without a flush only the simulation knows."""
        limit = self._request.memory_limit
        if limit == float("inf") or not candidate.plan.flushes:
            return True
        nbytes = peak_of(candidate, self._workload(candidate.plan))
        if nbytes > limit:
            self._leave_out(candidate)
        return nbytes <= limit

    def _leave_out(self, candidate: Candidate) -> None:
        """Count a candidate that does not fit, and add the teams of which members hold less, once."""
        self.too_big += 1
        self._lighten(candidate)

    def _lighten(self, candidate: Candidate) -> None:
        if candidate.plan.tensor > 1 and (plan := split_model(self._request.model).lighter(candidate.plan)):
            lighter = replace(candidate, plan=plan)
            if repr(lighter) not in self._lightened:
                self._lightened.add(repr(lighter))
                self.add(lighter)

    def _add_layouts(self, candidate: Candidate, worst: float) -> None:
        request, workload = self._request, self._workload(candidate.plan)
        layouts, moves = split_model(request.model).layouts(candidate.plan, request.machine)
        bounds = least_of_layouts(candidate, workload, request.machine, request.all_reduce, moves)
        held = held_by_layouts(request.model, candidate, workload, request.machine, len(layouts))
        front = Front(layouts, bounds, held, request.memory_limit)
        self.considered, self.too_big = self.considered + front.considered, self.too_big + front.too_big
        self.least = min(self.least, held.min(initial=float("inf")))
        self._push(front.bound, candidate, front, worst)
        if front.too_big:
            self._push(front.lightened, candidate, Front([], bounds[:0], held[:0], 0.0), worst)

    def _workload(self, plan: Plan) -> Workload:
        return self._held(Candidate(plan))[0]

    def _held(self, candidate: Candidate) -> tuple[Workload, float]:
        """The workload of a candidate's plan, and its least bytes."""
        plan, layout = candidate.plan, candidate.plan.layout  # placement and teams decide which ranks divide an update
        key = plan.depth, plan.microbatch, layout.parts, plan.tensor, plan.split, frozenset(layout.placement.items())
        if key not in self._workloads:
            workload = self._request.workload(plan)
            self._workloads[key] = workload, least_bytes(candidate, workload)
        return self._workloads[key]


def _baseline(request: SearchRequest) -> Outcome | None:
    plan = data_parallel(request.ranks, request.model.batch)
    return None if plan is None else request.simulate(Candidate(plan))


def _best(found: _Found) -> str:
    return f"{found.best[0].step_s * 1e3:.1f} ms" if found.best else "more memory than there is"


def _too_big(request: SearchRequest, least: float) -> UsageError:
    fact = f"no plan fits the memory (limit: {request.memory_limit / 2**20:.1f} MiB a rank, the least that one takes: "
    return UsageError(f"{fact}{least / 2**20:.1f} MiB or more); raise `memory_limit=`, or use more ranks")
