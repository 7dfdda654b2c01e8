"""The arguments of a search and of a call for a plan, and the simulation of one candidate."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipelined.errors import UsageError, refuse_below, require_switch, whole
from pipelined.planner.candidates import Candidate
from pipelined.planner.memory_limit import share_of_memory
from pipelined.planner.model_costs import MOST_TOLERANCE, ModelCosts, StatedCosts, priced
from pipelined.planner.planner_model import PlannerModel
from pipelined.process.launch import Launch
from pipelined.programs.plan import Plan
from pipelined.schedules import require_count
from pipelined.simulation import Machine, Simulated, Workload, simulate
from pipelined.simulation.job import with_costs

TRIES = 3
"""The number of candidates to try with real training steps; data parallelism is tried besides."""


@dataclass(frozen=True)
class SimulatedCandidate:
    """One candidate and its prediction.

    Args:
        candidate: the plan, with the costs that the simulation used.
        tried_s: measured seconds of a training step; None if the candidate was not tried.
    """

    candidate: Candidate
    simulated: Simulated
    tried_s: float | None = None

    @property
    def step_s(self) -> float:
        return self.simulated.step_s

    @property
    def expected_s(self) -> float:
        """The measured seconds of a training step, or the predicted ones if the candidate was not tried."""
        return self.step_s if self.tried_s is None else self.tried_s

    @property
    def memory(self) -> float:
        """Bytes of the fullest rank."""
        return max(rank.total for rank in self.simulated.memory)

    @property
    def order(self) -> tuple[float, float, int, str]:
        """The sort key: seconds of a training step, then memory, stages, name."""
        plan = self.candidate.plan
        return self.step_s, self.memory, plan.depth, plan.schedule


@dataclass(frozen=True)
class SearchRequest:
    """The arguments of a search.

    Args:
        ranks: the number of ranks; every plan uses all of them.
        memory_limit: bytes that a rank may hold.
        without_flush: whether to include schedules without a flush.
    """

    model: PlannerModel
    costs: ModelCosts
    machine: Machine
    ranks: int
    memory_limit: float = float("inf")
    without_flush: bool = False

    @property
    def tolerance(self) -> float:
        """The share of a step by which the chosen candidate may be slower than the best: the error of the costs."""
        return min(self.costs.error, MOST_TOLERANCE)

    @property
    def all_reduce(self) -> str:
        """The algorithm that prices gradient sums; "native" has no closed form and is priced as "auto"."""
        return "auto" if self.model.all_reduce == "native" else self.model.all_reduce

    def simulate(self, candidate: Candidate) -> SimulatedCandidate:
        """Simulate a training step. The outcome's plan has the costs, so that training starts gradient sums as here."""
        recompute = candidate.recompute
        workload = self.workload(candidate.plan)
        plan = with_costs(candidate.plan, workload, self.machine, recompute)
        simulated = simulate(plan, workload, self.machine, recompute=recompute, all_reduce=self.all_reduce)
        return SimulatedCandidate(Candidate(plan, recompute), simulated)

    def workload(self, plan: Plan) -> Workload:
        """The workload of a plan; an open layout gets the lowest cost that any layout has."""
        return priced(self.model, plan, self.costs, self.machine)


@dataclass(frozen=True)
class PlanRequest:
    """The arguments of a call for a plan, before anything is measured.

    Args:
        ranks: the ranks to plan for.
        costs: costs of stages; None: they are measured.
        machine: nodes and cores, and links that are not measured.
        memory_limit: bytes that a rank may hold, infinite: any; None: its share of this machine's memory.
        without_flush: whether to include schedules without a flush, unless the optimizer updates masters.
        tries: the number of candidates to try with real training steps; None: `TRIES` if that is possible.
    Raises:
        UsageError: a number is out of range.
    """

    ranks: int
    costs: StatedCosts | None
    machine: Machine
    memory_limit: float | None = None
    without_flush: bool = False
    tries: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "ranks", whole("ranks", self.ranks, 1))
        require_count("ranks", self.ranks)
        require_switch("stale", self.without_flush)  # which `plan` and the command call stale, after the gradients
        if self.tries is not None:
            object.__setattr__(self, "tries", whole("tries", self.tries, 0))
        if self.memory_limit is not None and self.memory_limit != math.inf:
            refuse_below(1, "memory_limit", self.memory_limit)

    def trials_on(self, started: int) -> int:
        """The number of candidates to try on the ranks that were started.

        Raises:
            UsageError: `tries` asks for trials that these ranks cannot make.
        """
        if self.costs is not None:
            hindrance = "`costs=` says what they cost"
        elif self.ranks != started:
            hindrance = f"other ranks are planned for than were started (planned: {self.ranks}, started: {started})"
        else:
            return TRIES if self.tries is None else self.tries
        if self.tries:
            raise UsageError(f"`tries={self.tries}` cannot run plans where {hindrance}; leave it out")
        return 0

    def memory_limit_on(self, launch: Launch, gpus: Sequence[int] = ()) -> float:
        """Bytes a rank may hold.

        Args:
            gpus: bytes of each of this machine's GPUs.
        """
        if self.memory_limit is not None:
            return self.memory_limit
        ranks_here = self.machine.node or launch.count_ranks_here(self.ranks)
        return share_of_memory(min(ranks_here, self.ranks), gpus)
