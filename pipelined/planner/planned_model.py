"""The interface of a model to the planner: its sizes, and how to build it for measuring. `apps.gpt2` implements it.

Nothing here needs torch until `build` is called.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from pipelined.programs.plan import Plan
from pipelined.simulation.workload import Workload


class PlannedModel(Protocol):
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

    @property
    def all_reduce(self) -> str:
        """The algorithm of gradient sums."""
        ...

    @property
    def compress(self) -> str:
        """The codec of messages between stages: a name that `transports.find_codec` accepts, or "none"."""
        ...

    @property
    def sequence(self) -> int:
        """Tokens in a sequence."""
        ...

    @property
    def layer_costs(self) -> list[float]:
        """Floating-point operations per token of each layer's forward; stages are cut by these."""
        ...

    def workload(self, plan: Plan) -> Workload:
        """The model cut by the plan: exact sizes; seconds at one floating-point operation per second."""
        ...

    def build(self) -> Any:
        """Build the `pipelined.training.model.Model` for measuring; this may import torch."""
        ...

    def numerics(self) -> Any:
        """The precision settings of training, a `pipelined.training.trainer.Numerics`; this may import torch."""
        ...
