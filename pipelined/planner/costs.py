"""The costs of stages: seconds of each operation, as a sum over the layers of the stage.

An instruction takes a fixed time plus the sum of its layers' times. Layers of the same kind have the same time; the
kinds are the first layer, the last layer, and the layers between by their floating-point operations.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pipelined.measurement.codec import CodecCosts
from pipelined.planner.planned_model import PlannedModel
from pipelined.programs.partition import partition
from pipelined.programs.plan import Plan
from pipelined.simulation.workload import StageCosts, Workload

FIELDS = {"F": "forward", "A": "again", "B": "backward", "I": "backward_input", "W": "backward_weight", "U": "update"}
"""Each priced operation, and its field of `StageCosts`. A is the forward inside a backward with recomputation."""
FIRST_INPUT = "first I"
"""The timed operation behind the input half of a stage with the first layer; the weight half does its work there."""
LEAST = 1e-9
"""The least seconds of an instruction; a fit may give 0 or less."""

PLAIN = CodecCosts()
"""No codec: messages are sent unchanged."""

Kind = tuple[str, float]
Seconds = Mapping[Kind | None, float]
"""Seconds by kind of layer; under None the fixed seconds of every instruction."""


class ModelCosts(Protocol):
    """Seconds of a stage's operations, and the codec of its messages."""

    @property
    def coding(self) -> CodecCosts:
        """The effect of the codec on messages: their size on the wire, and the seconds of coding."""
        ...

    def seconds(self, op: str, layers: range, rows: int) -> float:
        """Seconds of one operation (F, B, I, W, A or the update U) with `rows` sequences; U does not depend on them."""
        ...


def kinds_of(layer_costs: list[float]) -> list[Kind]:
    """The kind of each layer."""
    last = len(layer_costs) - 1
    names = {0: "first", last: "last"}
    return [(names.get(number, "inner"), cost) for number, cost in enumerate(layer_costs)]


@dataclass(frozen=True)
class Stated:
    """Costs from the command line: a speed, and a fixed time for each instruction.

    Args:
        layer_costs: floating-point operations per token of each layer's forward.
        sequence: tokens in a sequence.
        flops: floating-point operations per second. A backward takes twice as many as a forward, each half of it as
            many as a forward.
        overhead: additional seconds of each instruction.
        coding: the effect of the codec on messages.
    """

    layer_costs: list[float]
    sequence: int
    flops: float
    overhead: float = 0.0
    coding: CodecCosts = PLAIN

    def seconds(self, op: str, layers: range, rows: int) -> float:
        if op == "U":
            return 0.0
        work = sum(self.layer_costs[layer] for layer in layers) * rows * self.sequence
        if 0 in layers and op in "IW":  # the first stage sends no gradient: its weight half is the whole backward
            return 0.0 if op == "I" else self.overhead + 2 * work / self.flops
        return (0.0 if op == "A" else self.overhead) + work * (2 if op == "B" else 1) / self.flops

    def plain(self) -> dict[str, Any]:
        return {"stated": {"flops": self.flops, "overhead": self.overhead, "coding": self.coding.plain()}}


@dataclass(frozen=True)
class Measured:
    """Costs that were fitted to measurements.

    Args:
        layer_costs: floating-point operations of each layer of the model; they give the kinds of its layers.
        found: the seconds for each operation and each measured microbatch size; an update has only the size 0.
        runtime: seconds of the runtime per instruction, besides the computing.
        coding: the effect of the codec on messages.
    """

    layer_costs: list[float]
    found: Mapping[tuple[str, int], Seconds]
    runtime: float = 0.0
    coding: CodecCosts = PLAIN

    def seconds(self, op: str, layers: range, rows: int) -> float:
        """Seconds, interpolated between measured sizes; above the largest in proportion, below the smallest as there.

        The first stage sends no gradient, so the weight half is all of its split backward.
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
    """The number of layers of each kind, in the given order."""
    counts = Counter(kinds)
    return tuple(float(counts[kind]) for kind in order)


def priced(model: PlannedModel, plan: Plan, costs: ModelCosts) -> Workload:
    """The model's workload with these seconds. Halved microbatches cost as much as half as many sequences."""
    workload, cut = model.workload(plan), partition(model.layer_costs, plan.depth)
    parts = plan.layout.parts
    stages = [
        _timed(stage, layers, plan.rows, parts, costs) for stage, layers in zip(workload.stages, cut, strict=True)
    ]
    return replace(workload, stages=stages)


def _timed(stage: StageCosts, layers: range, rows: int, parts: int, costs: ModelCosts) -> StageCosts:
    seconds = {field: max(LEAST, costs.seconds(op, layers, rows)) * parts for op, field in FIELDS.items() if op != "U"}
    sent, coding = stage.message_bytes, costs.coding
    carried = {"message_bytes": coding.bytes(sent), "coding": coding.seconds(sent / parts) * parts}
    return replace(stage, **seconds, **carried, update=costs.seconds("U", layers, rows))
