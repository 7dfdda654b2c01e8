"""What a search is asked for, and the simulation of one candidate."""

from dataclasses import dataclass

from pipelined.planner.candidates import Candidate
from pipelined.planner.costs import MOST_TOLERANCE, ModelCosts, priced
from pipelined.planner.model_to_plan import ModelToPlan
from pipelined.programs.plan import Plan
from pipelined.simulation import Machine, Simulated, Workload, simulate
from pipelined.simulation.job import with_costs


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
        return self.simulated.step_s

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
        without_flush: whether to include schedules without a flush.
    """

    model: ModelToPlan
    costs: ModelCosts
    machine: Machine
    ranks: int
    memory_limit: float = float("inf")
    without_flush: bool = False

    @property
    def tolerance(self) -> float:
        """The share of a step by which the chosen plan may be slower than the best: the error of the costs."""
        return min(self.costs.error, MOST_TOLERANCE)

    @property
    def all_reduce(self) -> str:
        """The algorithm that prices gradient sums; "native" has no closed form and is priced as "auto"."""
        return "auto" if self.model.all_reduce == "native" else self.model.all_reduce

    def simulate(self, candidate: Candidate) -> Outcome:
        """Simulate one step of a candidate; the plan of the outcome has the costs, so that training sums as here."""
        again = candidate.recompute
        workload = self.workload(candidate.plan)
        plan = with_costs(candidate.plan, workload, self.machine, again)
        simulated = simulate(plan, workload, self.machine, recompute=again, all_reduce=self.all_reduce)
        return Outcome(Candidate(plan, again), simulated)

    def workload(self, plan: Plan) -> Workload:
        """The workload of a plan; an open layout gets the lowest cost that any layout has."""
        return priced(self.model, plan, self.costs, self.machine)
