"""The costs of stages: measured, or stated on the command line; and a model's workload with these seconds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from pipelined.errors import UsageError
from pipelined.measurement.measured_costs import NO_CODEC
from pipelined.measurement.timed.codec import CodecCosts
from pipelined.planner.planner_model import PlannerModel, SplitModel, StageMoves
from pipelined.programs.instructions import DELAYED_UPDATE, OP_NAMES, RECOMPUTED_FORWARD, UPDATE
from pipelined.programs.partition import partition
from pipelined.programs.plan import Plan
from pipelined.simulation import Machine, StageCosts, Workload

FIELDS = {
    **OP_NAMES,
    RECOMPUTED_FORWARD: "recomputed_forward",
    UPDATE: "update",
    DELAYED_UPDATE: "delayed_update",
}
"""Each priced operation, and its field of `StageCosts`."""
MOST_TOLERANCE = 0.05
"""The most by which a search may miss the best: a large error is common to all plans, and keeps their order."""
MIN_SECONDS = 1e-9
"""The least seconds of an instruction; a fit may give 0 or less."""


class ModelCosts(Protocol):
    """Seconds of a stage's operations, and the codec of its messages."""

    @property
    def coding(self) -> CodecCosts:
        """The effect of the codec on messages: their size on the wire, and the seconds of coding."""

    @property
    def error(self) -> float:
        """The relative standard error of the seconds; 0: they are exact."""

    @property
    def member_costs(self) -> "ModelCosts":
        """The costs of a member of a team; its rows are its share of a microbatch."""

    def seconds(self, op: str, layers: range, rows: float) -> float:
        """Seconds of one operation of `FIELDS` with `rows` sequences; the updates do not depend on the rows.

        A member of a team has a share of each sequence, so its rows may be a fraction.
        """


@dataclass(frozen=True)
class StatedCosts:
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
    coding: CodecCosts = NO_CODEC
    error: ClassVar[float] = 0.0

    @property
    def member_costs(self) -> "StatedCosts":
        return self

    def seconds(self, op: str, layers: range, rows: float) -> float:
        if op in (UPDATE, DELAYED_UPDATE):
            return 0.0
        work = sum(self.layer_costs[layer] for layer in layers) * rows * self.sequence
        if 0 in layers and op in "IW":  # the first stage sends no gradient: its weight half is the whole backward
            return 0.0 if op == "I" else self.overhead + 2 * work / self.flops
        return (0.0 if op == RECOMPUTED_FORWARD else self.overhead) + work * (2 if op == "B" else 1) / self.flops

    def to_dict(self) -> dict[str, Any]:
        return {"stated": {"flops": self.flops, "overhead": self.overhead, "coding": self.coding.to_dict()}}


def priced(model: PlannerModel, plan: Plan, costs: ModelCosts, machine: Machine | None = None) -> Workload:
    """The model's workload with these seconds. Halved microbatches cost as much as half as many sequences.

    The members of a team compute equal shares, and then move what the other members need.

    Args:
        machine: the links of teams; None: free links.
    """
    workload, moves_by_stage = workload_and_moves(model, plan, machine or Machine())
    cut = partition(model.layer_costs, plan.depth)
    stages = [
        _with_seconds(stage, layers, plan, costs, moves)
        for stage, layers, moves in zip(workload.stages, cut, moves_by_stage, strict=True)
    ]
    has_updates = any(stage.update or stage.delayed_update for stage in stages)
    shares = _updated_shares(model, plan, workload) if has_updates else [1.0] * plan.depth
    with_updates = [
        replace(stage, update=share * stage.update + moves.update, delayed_update=share * stage.delayed_update)
        for stage, moves, share in zip(stages, moves_by_stage, shares, strict=True)
    ]
    return replace(workload, stages=with_updates)


def _updated_shares(model: PlannerModel, plan: Plan, workload: Workload) -> list[float]:
    """The share of each stage's parameters that a rank updates; what else ends a step shrinks alike."""
    if any(bucket.updaters > 1 for bucket in workload.parameters):
        return [_updated_share(workload, stage) for stage in range(plan.depth)]
    if plan.tensor == 1:
        return [1.0] * plan.depth
    elements = sum(bucket.elements for bucket in workload.parameters)
    all_parameters = model.workload(replace(plan, tensor=1)).parameters
    return [elements / sum(bucket.elements for bucket in all_parameters)] * plan.depth


def _updated_share(workload: Workload, stage: int) -> float:
    buckets = [bucket for bucket in workload.parameters if stage in bucket.stages]
    updated = sum(bucket.elements / bucket.updaters for bucket in buckets)
    return updated / max(1, sum(bucket.elements for bucket in buckets))


def workload_and_moves(model: PlannerModel, plan: Plan, machine: Machine) -> tuple[Workload, Sequence[StageMoves]]:
    """The workload before it has its seconds, and the moves of each stage's team.

    Raises:
        UsageError: the plan has teams, and the model does not say how ranks split it.
    """
    if plan.tensor == 1:
        return model.workload(plan), [StageMoves()] * plan.depth
    return require_split_plans(model).team_workload(plan, machine)


def can_split(model: PlannerModel, plan: Plan) -> bool:
    """Whether the plan's teams, if it has any, can split the model."""
    return plan.tensor == 1 or require_split_plans(model).can_split(plan)


def unsplittable_error(model: PlannerModel) -> UsageError:
    """The error where no plan has teams that can split the model."""
    fixed = ", ".join(f"{name}: {model.fixed[name]}" for name in ("tensor", "layout") if name in model.fixed)
    return UsageError(f"no plan's teams can split the model ({fixed}); use fewer ranks a worker, or a larger batch")


def require_split_plans(model: object) -> SplitModel:
    """The model, if it says how teams split it.

    Raises:
        UsageError: it does not.
    """
    if not isinstance(model, SplitModel):
        raise UsageError("the model does not say how the ranks of a team split it; plan it with tensor 1")
    return model


def _with_seconds(stage: StageCosts, layers: range, plan: Plan, costs: ModelCosts, moves: StageMoves) -> StageCosts:
    """A stage with the seconds of a microbatch before it is cut, and of its updates: a member's, with its moves."""
    pieces = plan.stage_map.pieces
    rows = plan.rows / plan.tensor
    rank_costs = costs if plan.tensor == 1 else costs.member_costs

    def seconds(op: str, move_seconds: float) -> float:
        return (max(MIN_SECONDS, rank_costs.seconds(op, layers, rows)) + move_seconds) * pieces

    return replace(
        stage,
        forward=seconds("F", moves.forward),
        recomputed_forward=seconds(RECOMPUTED_FORWARD, moves.forward),
        backward=seconds("B", moves.backward),
        backward_input=seconds("I", moves.backward - moves.weights),
        backward_weight=seconds("W", moves.weights),
        update=rank_costs.seconds(UPDATE, layers, rows),
        delayed_update=rank_costs.seconds(DELAYED_UPDATE, layers, rows),
        message_bytes=costs.coding.bytes(stage.message_bytes),
        coding=costs.coding.seconds(stage.message_bytes / pieces) * pieces,
    )
