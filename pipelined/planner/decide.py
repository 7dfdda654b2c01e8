"""The decision on the arrangement of a run at its start: measure, search, and compare with the rule's arrangement.

The rule's arrangement is the default of the program. It runs unless another plan is predicted to be clearly faster.
Measuring is limited to a share of the run's time, so that it cannot cost more than it may save. Rank 0 decides once and
broadcasts the decision; every arrangement trains on the same batch. Torch is imported only where something is measured.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from collectives import Links
from collectives.objects import broadcast_object
from pipelined.measurement.effort import BRIEF
from pipelined.planner.candidates import Candidate
from pipelined.planner.measured_search import MeasuredSearch, find_measured
from pipelined.planner.memory_limit import agreed_limit, agreed_sizes, share_of_memory
from pipelined.planner.plan_search import SearchResult
from pipelined.planner.planner_model import PlannerModel
from pipelined.planner.request import PlanRequest, SimulatedCandidate
from pipelined.planner.worth_measuring import sizes_to_time
from pipelined.process.launch import Launch
from pipelined.programs.plan import Plan
from pipelined.schedules import require_known
from pipelined.simulation import Machine
from transports import Transport

MARGIN = 0.1
"""Share of a step; a predicted difference below this is within the error of predictions."""
SEARCH_S = 2.0
"""The most seconds of a search at the start of a run."""


@dataclass(frozen=True)
class Decision:
    """The arrangement of a run.

    Args:
        candidate: the plan, and whether it recomputes.
        reason: the reason for it, in one line.
        step_s: seconds of a step, tried or else predicted; None if nothing was measured.
    """

    candidate: Candidate
    reason: str
    step_s: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for the broadcast to the other ranks."""
        return {
            "plan": self.candidate.plan.to_dict(),
            "recompute": self.candidate.recompute,
            "reason": self.reason,
            "step_s": self.step_s,
        }

    @classmethod
    def of(cls, document: dict[str, Any], schedule: str | None = None) -> "Decision":
        """A decision from the JSON of `to_dict`.

        Args:
            schedule: the schedule that the command line names, if any; it may be a file of the user.
        Raises:
            ScheduleError: the document names another schedule, which is not the project's own.
        """
        require_known(document["plan"]["schedule"], schedule)
        return cls(Candidate(Plan.of(document["plan"]), document["recompute"]), document["reason"], document["step_s"])


async def decide(transport: Transport, model: PlannerModel, launch: Launch, default: Plan) -> Decision:
    """Measure briefly, search, and compare; all ranks call this together and get the same decision.

    Args:
        default: the rule's arrangement; it runs unless another arrangement is clearly better.
    Raises:
        AgreedError: no plan fits the memory.
    """
    ranks = transport.world_size
    limit = await agreed_limit(transport, _share_of_memory(transport))
    brief_search = MeasuredSearch(
        model=model,
        launch=launch,
        request=PlanRequest(ranks, costs=None, machine=Machine(Links())),
        memory_limit=limit,
        sizes=sizes_to_time(await agreed_sizes(transport, model, ranks, limit), default),
        effort=BRIEF,
        max_seconds=SEARCH_S,
    )
    result, _ = await brief_search.run(transport) or (None, {})
    if result is None:
        return await _broadcast(transport, model, None)
    default_outcome = await asyncio.to_thread(result.request.simulate, Candidate(default))
    return await _broadcast(transport, model, choose(result, default_outcome))


async def decide_among_all(transport: Transport, model: PlannerModel, launch: Launch) -> Decision:
    """Find the fastest plan of all schedules; see `find_measured`, which all ranks call together."""
    limit = _share_of_memory(transport)
    request = PlanRequest(transport.world_size, costs=None, machine=Machine(Links()), memory_limit=limit)
    plan_file, _ = await find_measured(transport, model, launch, request)
    return Decision(Candidate(plan_file.plan, plan_file.recompute), plan_file.why, plan_file.step_s)


def _share_of_memory(transport: Transport) -> float:
    """The bytes that this rank may hold."""
    from pipelined.measurement.measure import gpu_bytes

    return share_of_memory(len(transport.ranks_here), gpu_bytes())


async def _broadcast(transport: Transport, model: PlannerModel, decision: Decision | None) -> Decision:
    """Rank 0's decision, on all ranks."""
    document = await broadcast_object(transport, "decided", decision and decision.to_dict())
    return Decision.of(document, model.fixed.get("schedule"))


def choose(result: SearchResult, default: SimulatedCandidate) -> Decision:
    """The plan of the search if it is clearly faster than the rule's plan, or if that does not fit; else the rule's."""
    chosen = result.chosen
    limit = result.request.memory_limit
    plan = default.candidate.plan
    if default.memory > limit:
        comparison = f"depth {plan.depth} x width {plan.width} takes {_mib(default.memory)} a rank of {_mib(limit)}"
    elif chosen.step_s < (1 - MARGIN) * default.step_s:
        sizes = f"depth {plan.depth} x width {plan.width} with microbatches of {plan.microbatch_size}"
        comparison = f"{sizes} takes {_ms(default)}"
    else:
        chosen = default
        comparison = f"nothing of its kind is more than {MARGIN:.0%} faster"
    text = f"predicted {_ms(chosen)} a step; {comparison}{_note_on_baseline(result, chosen)}"
    return Decision(chosen.candidate, text, chosen.step_s)


def _note_on_baseline(result: SearchResult, chosen: SimulatedCandidate) -> str:
    """A note with the time of data parallelism, if it is clearly faster and was not among the candidates; else ""."""
    baseline = result.baseline
    if baseline is None or baseline.memory > result.request.memory_limit:
        return ""
    if baseline.step_s >= (1 - MARGIN) * chosen.step_s or "schedule" not in result.request.model.fixed:
        return ""
    return f"; plain data parallelism {_ms(baseline)}, which --plan auto may take"


def _ms(outcome: SimulatedCandidate) -> str:
    return f"{outcome.step_s * 1e3:.1f} ms"


def _mib(nbytes: float) -> str:
    return f"{nbytes / 2**20:,.0f} MiB"
