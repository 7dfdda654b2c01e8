"""The interface of a model to the planner: its sizes beside what a measurement needs. `apps.gpt2` implements it."""

from collections.abc import Mapping
from typing import Any, Protocol

from pipelined.measurement.measured_model import MeasuredModel
from pipelined.programs.plan import Plan
from pipelined.simulation.workload import Workload


class PlannedModel(MeasuredModel, Protocol):
    """A model to train, and the size of a step."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """The model's sizes and the sequence length, as JSON; a plan file is valid only for the same identity."""
        ...

    @property
    def batch(self) -> int:
        """Sequences per step over all groups, B·N·W."""
        ...

    @property
    def fixed(self) -> Mapping[str, Any]:
        """Settings that the user has chosen, which the planner must keep: fields of `Plan`, and `recompute`."""
        ...

    def workload(self, plan: Plan) -> Workload:
        """The model cut by the plan: exact sizes; seconds at one floating-point operation per second."""
        ...
