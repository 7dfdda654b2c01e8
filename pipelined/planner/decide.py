"""Deciding how a run that is about to begin is arranged: measure as much as that may win, and leave a known rule's
choice where nothing is predicted to be clearly better.

The rule: rank 0 decides once, and tells all; whatever is decided trains on the same batch. Torch is imported only where
something is measured.
"""

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from collectives import Links
from pipelined.actors.agree import agree, broadcast
from pipelined.aio.clock import RealClock
from pipelined.errors import UsageError
from pipelined.measurement.effort import BRIEF, THOROUGH, Effort
from pipelined.measurement.probes import probes
from pipelined.planner.candidates import Candidate
from pipelined.planner.explain import reason
from pipelined.planner.limits import share_of_memory, sizes_that_fit
from pipelined.planner.planned_model import PlannedModel
from pipelined.planner.search import Answer, Outcome, Question, search
from pipelined.process.launch import Launch
from pipelined.programs.plan import Plan
from pipelined.schedules import require_known
from pipelined.simulation.machine import Machine
from transports import Transport

MARGIN = 0.1
"""Of a step: predictions are that sure, and what differs by less is not told apart."""
WORTH = 0.03
"""Of the computing of a run: measuring may take so much."""
CROWD = 4
"""Ranks a core; where more share one, what is measured is how they wait for it."""
SEARCH_S = 2.0
"""Seconds that a search may take at the beginning of a run."""
TRIES = 3
"""Plans that are tried where all schedules are looked at, data parallelism beside them."""
PASSES = 6
"""A round of measuring takes as long as so many forwards: two of them, a backward, both halves of one."""


@dataclass(frozen=True)
class Decision:
    """What is run.

    Args:
        candidate: the arrangement.
        reason: why, in a line.
        step_s: predicted seconds of a step; None where nothing was measured.
    """

    candidate: Candidate
    reason: str
    step_s: float | None = None

    def plain(self) -> dict[str, Any]:
        """As the other ranks are told."""
        return {
            "plan": asdict(self.candidate.plan),
            "recompute": self.candidate.recompute,
            "reason": self.reason,
            "step_s": self.step_s,
        }

    @classmethod
    def of(cls, told: dict[str, Any]) -> "Decision":
        """From what `plain` gave; raises ScheduleError for a schedule that is not the project's own."""
        require_known(told["plan"]["schedule"])
        return cls(Candidate(Plan(**told["plan"]), told["recompute"]), told["reason"], told["step_s"])


async def decide(transport: Transport, model: PlannedModel, launch: Launch, ruled: Plan) -> Decision:
    """Measure briefly, search, and weigh; all ranks call this together and learn the same.

    Args:
        ruled: what runs unless something else is clearly better.
    Raises:
        AgreedError: nothing fits the memory.
    """
    limit = await _limit(transport, launch)
    sizes = worth_timing(await _sizes(transport, model, limit), ruled)
    answer = await _searched(transport, model, launch, limit=limit, sizes=sizes, effort=BRIEF, seconds=SEARCH_S)
    outcome = answer and await asyncio.to_thread(answer.question.simulate, Candidate(ruled))
    return await _told(transport, outcome and weigh(answer, outcome))


async def decide_among_all(transport: Transport, model: PlannedModel, launch: Launch) -> Decision:
    """Measure thoroughly, search everything, try the best, and take what took least; all ranks call this together.

    Raises:
        AgreedError: nothing fits the memory, or no plan is of the kind asked for.
    """
    limit = await _limit(transport, launch)
    sizes = await _sizes(transport, model, limit)
    answer = await _searched(transport, model, launch, limit=limit, sizes=sizes, effort=THOROUGH, seconds=inf)
    answer = await tried(transport, model, launch, answer, most=TRIES)
    best = answer and answer.chosen
    return await _told(transport, best and Decision(best.candidate, reason(answer), best.expected_s))


async def _limit(transport: Transport, launch: Launch) -> float:
    """Bytes a rank may hold, as rank 0 has it."""
    from pipelined.measurement.measure import gpu_bytes

    here = ranks_here(launch, transport.world_size)
    return await broadcast(transport, "limit", share_of_memory(here, gpu_bytes()))


async def _sizes(transport: Transport, model: PlannedModel, limit: float) -> list[int]:
    """The microbatches worth timing; where there are none, all ranks say so together."""
    return await agree(transport, "sizes", asyncio.to_thread(sizes_that_fit, model, transport.world_size, limit))


async def _searched(
    transport: Transport,
    model: PlannedModel,
    launch: Launch,
    *,
    limit: float,
    sizes: list[int],
    effort: Effort,
    seconds: float,
) -> Answer | None:
    """What was found, on rank 0.

    Args:
        limit: bytes a rank may hold.
        seconds: after which the search contents itself with the best so far.
    """
    from pipelined.measurement.measure import measure

    ranks = transport.world_size
    found = await measure(
        transport, model, launch, sizes=sizes, stated=Machine(Links()), ranks=ranks, tell=_quietly, effort=effort
    )

    def searched() -> Answer | None:
        if found is None:
            return None
        clock = RealClock()
        end = clock.now() + seconds
        question = Question(model, found.costs, found.machine, ranks, limit)
        return search(question, enough=lambda: clock.now() > end)

    return await agree(transport, "decide", asyncio.to_thread(searched))


async def _told(transport: Transport, decision: Decision | None) -> Decision:
    return Decision.of(await broadcast(transport, "decided", decision and decision.plain()))


async def tried(
    transport: Transport,
    model: PlannedModel,
    launch: Launch,
    answer: Answer | None,
    *,
    most: int,
    tell: Callable[[str], None] = lambda line: None,
) -> Answer | None:
    """Run the best for some steps, and put those that took least first; all ranks call this, rank 0 with the answer."""
    from pipelined.measurement.measure import place_of
    from pipelined.planner.trial import try_plans

    outcomes = answer.worth_trying(most) if answer else []
    plans = [[asdict(one.candidate.plan), one.candidate.recompute] for one in outcomes]
    told = await broadcast(transport, "worth trying", plans if answer else None)
    place = place_of(launch, ranks_here(launch, transport.world_size))
    chosen = [Candidate(Plan(**plan), again) for plan, again in told]
    seconds = await try_plans(transport, model, chosen, place, tell)
    return answer and answer.tried(outcomes, seconds)


def weigh(answer: Answer, ruled: Outcome) -> Decision:
    """The best that was found, if it is clearly better than the rule's arrangement, or if that does not fit."""
    best, limit, plan = answer.chosen, answer.question.memory_limit, ruled.candidate.plan
    if ruled.memory > limit:
        other = f"depth {plan.depth} x width {plan.width} takes {_mib(ruled.memory)} a rank of {_mib(limit)}"
    elif best.step_s < (1 - MARGIN) * ruled.step_s:
        other = f"depth {plan.depth} x width {plan.width} with microbatches of {plan.microbatch} takes {_ms(ruled)}"
    else:
        best, other = ruled, f"nothing of its kind is more than {MARGIN:.0%} faster"
    told = f"predicted {_ms(best)} a step; {other}{_beside(answer, best)}"
    return Decision(best.candidate, told, best.step_s)


def _beside(answer: Answer, chosen: Outcome) -> str:
    """What data parallelism would take, where it is not among the candidates and clearly faster."""
    other = answer.baseline
    if other is None or other.memory > answer.question.memory_limit:
        return ""
    if other.step_s >= (1 - MARGIN) * chosen.step_s or "schedule" not in answer.question.model.fixed:
        return ""
    return f"; plain data parallelism {_ms(other)}, which --plan auto may take"


def why_not(model: PlannedModel, launch: Launch, ruled: Plan, *, cores: int, steps: int, effort: Effort) -> str | None:
    """Why measuring cannot pay, in a clause; None where it can."""
    ranks = ruled.world_size
    here = ranks_here(launch, ranks)
    if ranks == 1:
        return "nothing to plan on one rank"
    if here > CROWD * cores:
        return f"not planned, as what {here} ranks on {cores} cores measure would not hold"
    try:
        sizes = worth_timing(sizes_that_fit(model, ranks, share_of_memory(here)), ruled)
    except UsageError:
        return "not planned, as no other arrangement uses all ranks for this batch, or none fits the memory"
    speedup = ranks * min(1.0, cores / here)
    if measuring_work(model, sizes, effort) > WORTH * training_work(model, steps) / speedup:
        return f"not planned, as measuring takes more than {WORTH:.0%} of what {steps} steps do"
    return None


def worth_timing(sizes: list[int], ruled: Plan) -> list[int]:
    """The smallest microbatch, and the largest up to twice the rule's; a line through both tells of all others."""
    return sorted({sizes[0], max([size for size in sizes if size <= 2 * ruled.rows], default=sizes[0])})


def measuring_work(model: PlannedModel, sizes: list[int], effort: Effort) -> float:
    """Floating-point operations that timing these microbatches takes a rank."""
    costs = model.layer_costs
    layers = sum(costs[layer] for part in probes(len(costs), effort) for layer in part)
    return effort.rounds * PASSES * layers * sum(sizes) * model.sequence


def training_work(model: PlannedModel, steps: int) -> float:
    """Floating-point operations of so many steps: a forward, and a backward of two."""
    return 3 * sum(model.layer_costs) * model.batch * model.sequence * steps


def ranks_here(launch: Launch, ranks: int) -> int:
    """Ranks on this node."""
    return ranks if launch.world_size is None else launch.local_size or ranks


def _ms(outcome: Outcome) -> str:
    return f"{outcome.step_s * 1e3:.1f} ms"


def _mib(nbytes: float) -> str:
    return f"{nbytes / 2**20:,.0f} MiB"


def _quietly(line: str) -> None:
    """Nobody is told how far it is."""
