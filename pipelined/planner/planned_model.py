"""What the planner must know of the program that it plans for: the sizes of its model. `apps.gpt2` gives one.

Seconds are for the planner to find. Nothing here needs torch until `build` is called.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from pipelined.programs.plan import Plan
from pipelined.simulation.workload import Workload


class PlannedModel(Protocol):
    """A model to be trained, and the size of a step."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What must agree for a plan to fit: the model's sizes and the sequence's length, as JSON can hold them."""
        ...

    @property
    def batch(self) -> int:
        """Sequences a step over all groups, B·N·W."""
        ...

    @property
    def fixed(self) -> Mapping[str, Any]:
        """What of a plan is asked for and must not be chosen otherwise: fields of `Plan`, and `recompute`."""
        ...

    @property
    def all_reduce(self) -> str:
        """The algorithm of gradient sums."""
        ...

    @property
    def compress(self) -> str:
        """The codec of messages between stages: a name that `transports.find_codec` knows, or none."""
        ...

    @property
    def sequence(self) -> int:
        """Tokens a sequence."""
        ...

    @property
    def layer_costs(self) -> list[float]:
        """Floating-point operations a token of a forward through each layer, by which stages are cut."""
        ...

    def workload(self, plan: Plan) -> Workload:
        """The model cut as the plan says: exact sizes; seconds as floating-point operations at one a second."""
        ...

    def build(self) -> Any:
        """The `pipelined.training.model.Model` itself, to be measured; this may import torch."""
        ...

    def numerics(self) -> Any:
        """How the trainer keeps its numbers: `pipelined.training.trainer.Numerics`; this may import torch."""
        ...
