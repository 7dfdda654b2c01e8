"""The predicted moves of a plan's teams, in bytes and seconds by stage and phase, and their drift. No torch."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from collectives import Links
from pipelined.planner.model_costs import require_split_plans
from pipelined.planner.planner_model import PlannerModel
from pipelined.programs.plan import Plan
from pipelined.simulation import Machine

PHASES = ("forward", "backward", "update")
BYTE_COUNTER = Machine(Links(0.0, 1.0, 0.0))
"""Links that take a second for a byte and nothing else, so that the seconds of moves are their bytes."""


class PredictedMoves(NamedTuple):
    """The moves of a stage in one phase: those of a microbatch, or of the update of a training step.

    Args:
        phase: one of `PHASES`.
        nbytes: the bytes that the busiest member sends.
        seconds: the seconds of the moves, without waiting for other members.
    """

    stage: int
    phase: str
    nbytes: int
    seconds: float

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "PredictedMoves":
        """From the JSON of `to_dict`.

        Raises:
            KeyError, TypeError, OverflowError: a field is missing, or of another type, or too large.
        """
        moves = cls(plain["stage"], plain["phase"], plain["bytes"], plain["seconds"])
        if type(moves.stage) is not int or moves.phase not in PHASES or type(moves.nbytes) is not int:
            raise TypeError(f"moves of {dict(plain)!r:.80}, and should be of a stage and a phase in whole bytes")
        if type(moves.seconds) not in (int, float) or not 0 <= moves.seconds < float("inf"):
            raise TypeError(f"moves take {moves.seconds!r} and should take seconds")
        return moves._replace(seconds=float(moves.seconds))

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"stage": self.stage, "phase": self.phase, "bytes": self.nbytes, "seconds": self.seconds}


def predicted_moves(model: PlannerModel, plan: Plan, machine: Machine) -> tuple[PredictedMoves, ...]:
    """The moves of every stage; none for workers of one rank."""
    if plan.tensor == 1:
        return ()
    _, seconds_by_stage = require_split_plans(model).team_workload(plan, machine)
    _, bytes_by_stage = require_split_plans(model).team_workload(plan, BYTE_COUNTER)
    return tuple(
        PredictedMoves(stage, phase, round(getattr(nbytes, phase)), getattr(seconds, phase))
        for stage, (seconds, nbytes) in enumerate(zip(seconds_by_stage, bytes_by_stage, strict=True))
        for phase in PHASES
    )


def drifted_moves(predicted: Sequence[PredictedMoves], measured_s: Mapping[tuple[int, str], float]) -> list[str]:
    """Measured beside predicted seconds, a line a stage; phases in which nothing is sent are left out.

    Args:
        measured_s: the slowest member's seconds by stage and phase; phases that are missing were not measured.
    """
    phases_by_stage = dict[int, list[str]]()
    for stage, phase, nbytes, predicted_s in predicted:
        if nbytes and (stage, phase) in measured_s:
            milliseconds = f"{measured_s[stage, phase] * 1e3:.2f} ms (planned {predicted_s * 1e3:.2f}"
            text = f"{phase} {milliseconds} for {nbytes:,} bytes)"
            phases_by_stage.setdefault(stage, []).append(text)
    return [f"moves of stage {stage}: {'; '.join(phases)}" for stage, phases in phases_by_stage.items()]
