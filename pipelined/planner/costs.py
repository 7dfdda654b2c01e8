"""What stages cost: seconds of each operation, put together from the layers a stage has.

The rule: a stage takes a fixed time for each instruction and the sum of its layers' times. Layers of one kind cost
alike: the first, the last, and those between by their floating-point operations.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pipelined.measurement.codec import Coding
from pipelined.planner.planned_model import PlannedModel
from pipelined.programs.partition import partition
from pipelined.programs.plan import Plan
from pipelined.simulation.workload import StageCosts, Workload

OPS = {"F": "forward", "A": "again", "B": "backward", "I": "backward_input", "W": "backward_weight", "U": "update"}
"""What is priced, by the field of `StageCosts` that it fills; A is a forward inside a backward that recomputes."""
FIRST_INPUT = "first I"
"""How the input half of a stage with the first layer is called among what is timed: it leaves its work to the other."""
LEAST = 1e-9
"""Seconds; computing takes some time, whatever a fit says."""

PLAIN = Coding()
"""Messages that travel as they are."""

Kind = tuple[str, float]
Seconds = Mapping[Kind | None, float]
"""Seconds by kind of layer, and under None what every instruction takes besides."""


class Costs(Protocol):
    """Seconds of a stage's operations, and what becomes of its messages."""

    @property
    def coding(self) -> Coding:
        """What the codec makes of messages, where there is one."""
        ...

    def seconds(self, op: str, layers: range, rows: int) -> float:
        """Of one instruction with so many sequences: F, B, I, W, A, or the update U, whose rows do not matter."""
        ...


def kinds_of(layer_costs: list[float]) -> list[Kind]:
    """The kind of each layer."""
    last = len(layer_costs) - 1
    names = {0: "first", last: "last"}
    return [(names.get(number, "inner"), cost) for number, cost in enumerate(layer_costs)]


@dataclass(frozen=True)
class Stated:
    """Costs that were said: a speed, and a fixed time for each instruction.

    Args:
        layer_costs: floating-point operations a token of each layer's forward.
        sequence: tokens a sequence.
        flops: floating-point operations a second; a backward takes twice a forward's, each half as much as that.
        overhead: seconds more for each instruction.
        coding: what the codec makes of messages.
    """

    layer_costs: list[float]
    sequence: int
    flops: float
    overhead: float = 0.0
    coding: Coding = PLAIN

    def seconds(self, op: str, layers: range, rows: int) -> float:
        if op == "U":
            return 0.0
        work = sum(self.layer_costs[layer] for layer in layers) * rows * self.sequence
        if 0 in layers and op in "IW":  # nobody waits for the input's gradient of the first stage
            return 0.0 if op == "I" else self.overhead + 2 * work / self.flops
        return (0.0 if op == "A" else self.overhead) + work * (2 if op == "B" else 1) / self.flops

    def plain(self) -> dict[str, Any]:
        return {"stated": {"flops": self.flops, "overhead": self.overhead, "coding": self.coding.plain()}}


@dataclass(frozen=True)
class Measured:
    """Costs that were fitted to measurements.

    Args:
        layer_costs: of the model, for the kinds of its layers.
        found: for each op and each microbatch size measured, the seconds; an update has the one size 0.
        runtime: seconds that the runtime takes for each instruction beside its computing.
        coding: what the codec makes of messages.
    """

    layer_costs: list[float]
    found: Mapping[tuple[str, int], Seconds]
    runtime: float = 0.0
    coding: Coding = PLAIN

    def seconds(self, op: str, layers: range, rows: int) -> float:
        """Between two sizes that were measured along a line; beyond them in proportion to the nearest.

        On the first stage nobody waits for the input's gradient, so all of a split backward is its weight half.
        """
        if op == "U":
            return self._at(op, 0, layers)
        if op == "A":
            return self._between("F", layers, rows)
        timed = {"I": FIRST_INPUT, "W": "B"}.get(op, op) if 0 in layers else op
        return self.runtime + self._between(timed, layers, rows)

    def _between(self, op: str, layers: range, rows: int) -> float:
        sizes = sorted(size for name, size in self.found if name == op)
        place = bisect_left(sizes, rows)
        if place == 0 or (place < len(sizes) and sizes[place] == rows):
            return self._at(op, sizes[place], layers)
        if place == len(sizes):
            return self._at(op, sizes[-1], layers) * rows / sizes[-1]
        low, high = sizes[place - 1], sizes[place]
        share = (rows - low) / (high - low)
        return (1 - share) * self._at(op, low, layers) + share * self._at(op, high, layers)

    def _at(self, op: str, size: int, layers: range) -> float:
        kinds, seconds = kinds_of(self.layer_costs), self.found[op, size]
        return seconds[None] + sum(seconds[kinds[layer]] for layer in layers)


def counted(kinds: Iterable[Kind], order: list[Kind]) -> tuple[float, ...]:
    """How many of each kind there are, in this order."""
    counts = Counter(kinds)
    return tuple(float(counts[kind]) for kind in order)


def priced(model: PlannedModel, plan: Plan, costs: Costs) -> Workload:
    """The model's sizes with these seconds. Halved microbatches cost what half as many sequences cost."""
    workload, cut = model.workload(plan), partition(model.layer_costs, plan.depth)
    parts = plan.layout.parts
    stages = [
        _timed(stage, layers, plan.rows, parts, costs) for stage, layers in zip(workload.stages, cut, strict=True)
    ]
    return replace(workload, stages=stages)


def _timed(stage: StageCosts, layers: range, rows: int, parts: int, costs: Costs) -> StageCosts:
    seconds = {field: max(LEAST, costs.seconds(op, layers, rows)) * parts for op, field in OPS.items() if op != "U"}
    sent, coding = stage.message_bytes, costs.coding
    carried = {"message_bytes": coding.bytes(sent), "coding": coding.seconds(sent / parts) * parts}
    return replace(stage, **seconds, **carried, update=costs.seconds("U", layers, rows))
