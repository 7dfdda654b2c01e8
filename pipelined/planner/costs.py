"""The costs of stages: measured, or stated on the command line; and a model's workload with these seconds."""

from dataclasses import dataclass, replace
from typing import Any, Protocol

from pipelined.measurement.codec import CodecCosts
from pipelined.measurement.costs import PLAIN
from pipelined.planner.planned_model import PlannedModel
from pipelined.programs.partition import partition
from pipelined.programs.plan import Plan
from pipelined.simulation.workload import StageCosts, Workload

FIELDS = {"F": "forward", "A": "again", "B": "backward", "I": "backward_input", "W": "backward_weight", "U": "update"}
"""Each priced operation, and its field of `StageCosts`. A is the forward inside a backward with recomputation."""
LEAST = 1e-9
"""The least seconds of an instruction; a fit may give 0 or less."""


class ModelCosts(Protocol):
    """Seconds of a stage's operations, and the codec of its messages."""

    @property
    def coding(self) -> CodecCosts:
        """The effect of the codec on messages: their size on the wire, and the seconds of coding."""
        ...

    def seconds(self, op: str, layers: range, rows: int) -> float:
        """Seconds of one operation (F, B, I, W, A or the update U) with `rows` sequences; U does not depend on them."""
        ...


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


def priced(model: PlannedModel, plan: Plan, costs: ModelCosts) -> Workload:
    """The model's workload with these seconds. Halved microbatches cost as much as half as many sequences."""
    workload, cut = model.workload(plan), partition(model.layer_costs, plan.depth)
    parts = plan.layout.parts
    stages = [
        _timed(stage, layers, plan.rows, parts, costs) for stage, layers in zip(workload.stages, cut, strict=True)
    ]
    return replace(workload, stages=stages)


def _timed(stage: StageCosts, layers: range, rows: int, parts: int, costs: ModelCosts) -> StageCosts:
    def seconds(op: str) -> float:
        return max(LEAST, costs.seconds(op, layers, rows)) * parts

    sent, coding = stage.message_bytes, costs.coding
    return replace(
        stage,
        forward=seconds("F"),
        again=seconds("A"),
        backward=seconds("B"),
        backward_input=seconds("I"),
        backward_weight=seconds("W"),
        update=costs.seconds("U", layers, rows),
        message_bytes=coding.bytes(sent),
        coding=coding.seconds(sent / parts) * parts,
    )
