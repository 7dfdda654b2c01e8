"""Plan files: JSON with a plan, its model and number of ranks, the predicted time and memory, and the reason.

The content is untrusted: every field is checked, and each fault becomes one message. No torch.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelined.errors import MALFORMED, UsageError, writing
from pipelined.planner.predicted_moves import PredictedMoves
from pipelined.process.whole_file import whole_file
from pipelined.programs.plan import Plan
from pipelined.schedules import require_known

FORMAT, VERSION = "pipelined-plan", 2
VERSIONS = (1, VERSION)
"""The versions that are read; a plan of version 1 has no teams."""
MAX_BYTES = 16 << 20
"""The most bytes of a plan file."""


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """The content of a plan file.

    Args:
        plan: the arrangement.
        recompute: whether a forward runs again before its backward.
        model: the identity of the model, with the sequence length.
        step_s: seconds of a training step: the median of the plan's trial if it was tried, else predicted.
        memory: predicted peak bytes of each rank.
        why: the reason, in one line.
        found: the costs that the prediction used, for human readers.
        moves: predicted bytes and seconds of the moves of teams; empty where the file has none.
    """

    plan: Plan
    recompute: bool
    model: Mapping[str, Any]
    step_s: float
    memory: tuple[float, ...]
    why: str
    found: Mapping[str, Any]
    moves: tuple[PredictedMoves, ...] = ()

    @classmethod
    def of(cls, plain: Mapping[str, Any], schedule: str | None = None) -> "PlanFile":
        """The content from the JSON of `to_dict`.

        Args:
            schedule: a schedule of the user's own that the plan may name.
        Raises:
            KeyError, TypeError, ValueError, OverflowError: a field is missing, or of another type, or too large.
            PlanError, ScheduleError: its plan cannot be laid out.
        """
        predicted = plain["predicted"]
        require_known(_value(plain["plan"], "schedule", str), schedule)
        plan = Plan.of(plain["plan"])
        if (ranks := _value(plain, "ranks", int)) != plan.world_size:
            raise ValueError(f"ranks is {ranks} and should be {plan.world_size}, as the plan has")
        return cls(
            plan=plan,
            recompute=_value(plain, "recompute", bool),
            model=dict(_value(plain, "model", dict)),
            step_s=_seconds(predicted["step_s"]),
            memory=_memory(_value(predicted, "memory", list)),
            why=_value(plain, "why", str),
            found=_value(plain, "found", dict),
            moves=tuple(map(PredictedMoves.of, _value({"moves": [], **predicted}, "moves", list))),
        )

    def require(self, path: Path, model: Mapping[str, Any], ranks: int | None) -> None:
        """Refuse another model or number of ranks.

        Raises:
            UsageError: the message names the difference and the remedy.
        """
        for name in sorted({*self.model, *model}):
            if (planned_value := self.model.get(name)) != (run_value := model.get(name)):
                fact = f"{path} is a plan for another model ({_difference(name, planned_value, run_value)})"
                raise UsageError(f"{fact}; plan again with `python -m pipelined plan`, or leave `plan=` out")
        if ranks not in (None, self.plan.world_size):
            fact = f"{path} is a plan for another number of ranks (planned: {self.plan.world_size}, ranks: {ranks})"
            raise UsageError(f"{fact}; start {self.plan.world_size} ranks, or plan again")

    def to_dict(self) -> dict[str, Any]:
        """The content as JSON."""
        moves = {"moves": [move.to_dict() for move in self.moves]} if self.moves else {}
        return {
            "format": FORMAT,
            "version": VERSION,
            "model": dict(self.model),
            "ranks": self.plan.world_size,
            "plan": self.plan.to_dict(),
            "recompute": self.recompute,
            "predicted": {"step_s": self.step_s, "memory": list(self.memory), **moves},
            "why": self.why,
            "found": dict(self.found),
        }


def write_plan(path: Path, content: PlanFile) -> None:
    """Write a plan file atomically: an earlier file stays complete until the new one replaces it.

    Raises:
        UsageError: the file cannot be written.
    """
    with writing(path), whole_file(path) as file:
        file.write_text(json.dumps(content.to_dict(), indent=2) + "\n")


def read_plan(path: Path, schedule: str | None = None) -> PlanFile:
    """Read a plan file.

    Args:
        schedule: the schedule that the command line names, if any; the plan may name it even if it is the user's own.
    Raises:
        UsageError: the file cannot be read, is not a plan, is damaged, has another version, or names a schedule that
            is not this project's.
        PlanError, ScheduleError: its plan cannot be laid out.
    """
    document = _read(path)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UsageError(
            f"{path} is no plan (JSON without format {FORMAT!r}); make one with `python -m pipelined plan`"
        )
    if document.get("version") not in VERSIONS:
        versions = " and ".join(map(str, VERSIONS))
        fact = f"{path} is a plan of another version (its: {document.get('version')!r}, known: {versions})"
        raise UsageError(f"{fact}; plan again with `python -m pipelined plan`")
    try:
        return PlanFile.of(document, schedule)
    except MALFORMED as error:
        if isinstance(error, UsageError):
            raise UsageError(f"{path}: {error}") from error
        fact = f"{path} is a damaged plan ({type(error).__name__}: {error})"
        raise UsageError(f"{fact}; plan again with `python -m pipelined plan`") from error


def _read(path: Path) -> Any:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{path} is no plan (bytes: {path.stat().st_size}, most: {MAX_BYTES}); name another file")
        return json.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read the plan {path} ({error.strerror}); name another --plan") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        fact = f"{path} is no plan (not JSON: {error})"
        raise UsageError(f"{fact}; make one with `python -m pipelined plan`") from error


def _difference(name: str, planned_value: Any, run_value: Any) -> str:
    """Two values that differ; for lists their lengths, or else the first entries that differ."""
    if isinstance(planned_value, list) and isinstance(run_value, list):
        if len(planned_value) != len(run_value):
            return f"{name}: {len(planned_value)}, here: {len(run_value)}"
        for index, (planned, run) in enumerate(zip(planned_value, run_value, strict=True)):
            if planned != run:
                return f"{name}, number {index}: {planned}, here: {run}"
    return f"{name}: {planned_value}, here: {run_value}"


def _value(document: Mapping[str, Any], name: str, kind: type) -> Any:
    value = document[name]
    if type(value) is not kind:
        raise TypeError(f"{name} is {value!r} and should be of type {kind.__name__}")
    return value


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < float("inf"):
        raise TypeError(f"step_s is {value!r} and should be seconds")
    return float(value)


def _memory(values: list[Any]) -> tuple[float, ...]:
    if not values or any(type(value) not in (int, float) or not 0 <= value < float("inf") for value in values):
        raise TypeError(f"memory is {values!r:.80} and should be bytes of each rank")
    return tuple(map(float, values))
