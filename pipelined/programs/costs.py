"""The costs of a schedule: the seconds of each instruction of a microbatch, and of a message."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from pipelined.errors import require_number
from pipelined.programs.instructions import OP_NAMES
from pipelined.schedules import ScheduleError

PerStage = float | Sequence[float]
"""One number for all stages, or one per stage."""


@dataclass(frozen=True)
class Costs:
    """The seconds of each instruction of one microbatch in one stage, and of a message between neighbours.

    If no input half is given it is half of the backward; if no weight half is given, the rest. The fields then hold
    these numbers.
    """

    forward: PerStage = 1.0
    backward: PerStage = 2.0
    backward_input: PerStage | None = None
    backward_weight: PerStage | None = None
    p2p: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            per_stage = field.name != "p2p" and isinstance(value, Sequence) and not isinstance(value, str)
            for seconds in value if per_stage else [value]:
                require_number(f"the cost {field.name.replace('_', '-')}", seconds)
                if not 0 <= seconds < math.inf:
                    name = field.name.replace("_", "-")
                    raise ScheduleError(f"the cost {name} must be finite seconds from 0 up (got: {seconds})")
        backwards = self.backward, self.backward_input, self.backward_weight
        if self.backward_input is None:
            object.__setattr__(self, "backward_input", _by_stage(lambda *costs: halves(*costs)[0], *backwards))
        if self.backward_weight is None:
            object.__setattr__(self, "backward_weight", _by_stage(lambda *costs: halves(*costs)[1], *backwards))

    def require_stages(self, depth: int) -> None:
        """Raises ScheduleError: a cost is given by stage, but not for each of `depth` stages."""
        for name, value in vars(self).items():
            if isinstance(value, Sequence) and len(value) != depth:
                fact = f"the cost {name.replace('_', '-')} is for other stages (stages with a cost: {len(value)}"
                raise ScheduleError(f"{fact}, depth: {depth}); give one number, or one for each stage")

    def seconds(self, op: str, stage: int) -> float:
        """Seconds of one computation; op is F, B, I or W."""
        seconds = getattr(self, OP_NAMES[op])
        return float(seconds if isinstance(seconds, float | int) else seconds[stage])

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON."""
        return asdict(self)

    @classmethod
    def parse(cls, document: Any, depth: int) -> "Costs":
        """Costs from the JSON of `to_dict`, which may be damaged.

        Raises:
            TypeError: a field is missing, unknown, or no number and no list of one number for each of `depth` stages.
            ScheduleError: a number is not a duration.
        """
        names = {field.name for field in fields(cls)}
        if type(document) is not dict or set(document) != names:
            raise TypeError(f"costs is {document!r} and should have {', '.join(sorted(names))}")
        for name, value in document.items():
            stage_costs = value if type(value) is list and name != "p2p" else [value] * depth
            if len(stage_costs) != depth or any(type(seconds) not in (int, float) for seconds in stage_costs):
                raise TypeError(f"the cost {name} is {value!r} and should be one number, or one for each stage")
        return cls(**document)


def halves(backward: float, backward_input: float | None, backward_weight: float | None) -> tuple[float, float]:
    """Seconds of both halves of a backward; None: open. Raises ScheduleError: nothing is left for an open one."""
    half = backward / 2 if backward_input is None else backward_input
    if backward_weight is None and half and half >= backward:
        fact = f"the input half takes all of the backward (half: {half}, whole: {backward})"
        raise ScheduleError(f"{fact}; give the weight half's seconds too, or a longer backward")
    return half, backward - half if backward_weight is None else backward_weight


def _by_stage(combine: Callable[..., float], *costs: PerStage | None) -> PerStage:
    """One number for all stages, or, where a cost is by stage, one for each."""
    if not (depths := [len(cost) for cost in costs if isinstance(cost, Sequence)]):
        return combine(*costs)
    rows = (cost if isinstance(cost, Sequence) else [cost] * max(depths) for cost in costs)
    return [combine(*row) for row in zip(*rows, strict=False)]  # `require_stages` refuses lists of other lengths


DEFAULT_COSTS = Costs()
"""Costs where none are given: a backward does twice the work of a forward, its halves share that, messages are free."""
