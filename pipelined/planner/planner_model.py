"""The interface of a model to the planner: its sizes, and what a measurement needs. `apps.gpt2` implements it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pipelined.measurement.measured_model import MeasuredModel
from pipelined.programs.plan import Plan
from pipelined.programs.updates.bucket_names import Stages
from pipelined.simulation import Machine, Workload


class PlannerModel(MeasuredModel, Protocol):
    """A model to train, and the size of a step."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """The model's sizes and the sequence length, as JSON; a plan file is valid only for the same identity."""

    @property
    def batch(self) -> int:
        """Sequences per step over all groups, B·N·W."""

    @property
    def fixed(self) -> Mapping[str, Any]:
        """The settings that the user has chosen and the planner keeps: fields of `Plan`, `recompute`, `compile`."""

    @property
    def has_masters(self) -> bool:
        """Whether the optimizer updates copies of the parameters, for which a schedule needs a flush."""

    def workload(self, plan: Plan) -> Workload:
        """The model cut by the plan: exact sizes; seconds at one floating-point operation per second."""


class StageMoves(NamedTuple):
    """Seconds in which a team moves tensors of one stage, in each phase.

    Args:
        forward, backward: a microbatch's.
        update: a training step's, with the sums of gradients.
        weights: the part of the backward that belongs to its weight half.
    """

    forward: float = 0.0
    backward: float = 0.0
    update: float = 0.0
    weights: float = 0.0


def is_open(plan: Plan) -> bool:
    """Whether the layout of the plan's teams is open; its text is then +STATE, or empty."""
    return plan.tensor > 1 and plan.layout[:1] in ("", "+")


class LayoutSizes(NamedTuple):
    """The sizes of what a member holds in each of several layouts.

    Args:
        elements: numbers of parameters, [layout, entry of the workload's parameters].
        activations, frozen: bytes of each stage, [layout, stage]; see `StageCosts`.
    """

    elements: NDArray[np.float64]
    activations: NDArray[np.float64]
    frozen: NDArray[np.float64]


@runtime_checkable
class SizedLayouts(Protocol):
    """A model that computes the sizes of all layouts at once, so that no layout is built only to be left out."""

    def layout_sizes(self, plan: Plan, machine: Machine, groups: Sequence[Stages]) -> LayoutSizes:
        """The sizes of the layouts of `SplitModel.layouts`, as the workloads of their plans have them.

        Args:
            groups: the stages of each entry of a workload's parameters.
        """


@runtime_checkable
class SplitModel(Protocol):
    """A planned model whose stages a team of ranks can split."""

    def divides(self, plan: Plan) -> bool:
        """Whether the plan's layout lets the ranks that hold one parameter divide its update."""

    def build_split(self, plan: Plan) -> Any:
        """Build the `teams.team_model.TeamModel` that the plan's teams train; this may import torch."""

    def can_split(self, plan: Plan) -> bool:
        """Whether the plan's teams can split the model by their layout or, if it is open, by any layout."""

    def layouts(self, plan: Plan, machine: Machine) -> tuple[Sequence[str], NDArray[np.float64]]:
        """Layouts that contain the best one for every plan with these teams and microbatches.

        Returns: layouts as `Plan.layout` has them, and their moves in seconds, [layout, stage, (a microbatch, a step)].
        """

    def in_next_zero_state(self, plan: Plan) -> Plan | None:
        """The same teams with an open layout in the next state of ZeRO: members hold less and move as much or more.

        The planner takes it where the plan, or one of its layouts, does not fit the memory. None: no state holds less.
        """

    def team_workload(self, plan: Plan, machine: Machine) -> tuple[Workload, Sequence[StageMoves]]:
        """A member's workload, at one floating-point operation a second, and the moves of each stage.

        If the plan's layout is open, sizes are even shares and moves are free: a lower bound of every layout.
        """
