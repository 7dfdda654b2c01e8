"""The predicted moves of a plan's teams, in bytes and seconds by stage and phase, and their drift. No torch."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from collectives import Links
from pipelined.planner.model_costs import require_split_plans
from pipelined.planner.planner_model import PlannerModel
from pipelined.programs.plan import Plan
from pipelined.simulation import Machine

PHASES = ("forward", "backward", "update")
COUNTING = Machine(Links(0.0, 1.0, 0.0))
"""Links over which a byte takes a second, so that seconds are bytes."""


class PredictedMoves(NamedTuple):
    """The moves of a stage in one phase: of a microbatch, those of the update of a step.

    Args:
        phase: one of `PHASES`.
        nbytes: what the busiest member sends.
        seconds: without waiting for other members.
    """

    stage: int
    phase: str
    nbytes: int
    seconds: float

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "PredictedMoves":
        """From the JSON of `to_dict`.

        Raises:
            KeyError, TypeError, ValueError: a field is missing, or of another type.
        """
        found = cls(plain["stage"], plain["phase"], plain["bytes"], plain["seconds"])
        if type(found.stage) is not int or found.phase not in PHASES or type(found.nbytes) is not int:
            raise TypeError(f"moves of {dict(plain)!r:.80}, and should be of a stage and a phase in whole bytes")
        if type(found.seconds) not in (int, float) or not 0 <= found.seconds < float("inf"):
            raise TypeError(f"moves take {found.seconds!r} and should take seconds")
        return found

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"stage": self.stage, "phase": self.phase, "bytes": self.nbytes, "seconds": self.seconds}


def predicted_moves(model: PlannerModel, plan: Plan, machine: Machine) -> tuple[PredictedMoves, ...]:
    """The moves of every stage; none for workers of one rank."""
    if plan.tensor == 1:
        return ()
    seconds, sent = (require_split_plans(model).team(plan, each)[1] for each in (machine, COUNTING))
    return tuple(
        PredictedMoves(stage, phase, round(getattr(nbytes, phase)), getattr(took, phase))
        for stage, (took, nbytes) in enumerate(zip(seconds, sent, strict=True))
        for phase in PHASES
    )


def drifted_moves(planned: Sequence[PredictedMoves], measured: Mapping[tuple[int, str], float]) -> list[str]:
    """Measured beside predicted seconds, a line a stage; phases in which nothing is sent are left out.

    Args:
        measured: by stage and phase, of the slowest member; phases that are missing were not measured.
    """
    lines = dict[int, list[str]]()
    for stage, phase, nbytes, seconds in planned:
        if nbytes and (took := measured.get((stage, phase))) is not None:
            words = f"{phase} {took * 1e3:.2f} ms (planned {seconds * 1e3:.2f} for {nbytes:,} bytes)"
            lines.setdefault(stage, []).append(words)
    return [f"moves of stage {stage}: {'; '.join(words)}" for stage, words in lines.items()]
