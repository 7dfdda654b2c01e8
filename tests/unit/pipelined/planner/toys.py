"""A model for the planner that is worked out by hand: alike layers, and sizes in round numbers."""

from dataclasses import dataclass, field
from typing import Any

from pipelined.programs.partition import partition
from pipelined.programs.plan import Plan
from pipelined.simulation import Parameters, StageCosts, Workload

WEIGHTS, KEPT, SENT = 1000, 64, 16
"""Numbers a layer has, and bytes it keeps and sends of a sequence."""


@dataclass(frozen=True)
class Toy:
    """So many alike layers."""

    layers: int = 4
    batch: int = 8
    sequence: int = 10
    fixed: dict[str, Any] = field(default_factory=dict)
    all_reduce: str = "ring"
    compress: str = "none"
    has_masters: bool = False

    @property
    def identity(self):
        return {"model": "toy", "layers": self.layers}

    @property
    def layer_costs(self):
        return [1.0] * self.layers

    def workload(self, plan: Plan) -> Workload:
        cut = partition(self.layer_costs, plan.depth)
        stages = [
            StageCosts(
                message_bytes=SENT * plan.microbatch_size,
                activation_bytes=KEPT * plan.microbatch_size * len(layers),
                boundary_bytes=SENT * plan.microbatch_size,
            )
            for layers in cut
        ]
        return Workload(stages, [Parameters((s,), WEIGHTS * len(layers)) for s, layers in enumerate(cut)])
