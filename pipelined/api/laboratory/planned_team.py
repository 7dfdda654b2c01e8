"""A row of layers that a team splits, as the planner takes a model: the pieces of its fullest member, and its moves."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

from pipelined.api.laboratory.planned_layers import PlannedLayers
from pipelined.api.split.model import SplitRow
from pipelined.measurement.planned_bytes import TeamRecord, team_records
from pipelined.planner.moves import PlannedMoves
from pipelined.programs.partition import partition
from pipelined.programs.plan import Plan
from pipelined.sharding import Shards
from pipelined.sharding.operators.record import MoveStep
from pipelined.simulation.workload import Parameters, StageCosts, Workload


@dataclass(frozen=True)
class PlannedTeam:
    """The sizes of the last member: of uneven parts it has the larger ones.

    Args:
        split: the row, as the team splits it.
        whole: the same row, as one rank holds it.
    """

    split: SplitRow
    whole: PlannedLayers
    _records: dict[Plan, list[TeamRecord]] = field(default_factory=dict, compare=False, repr=False)

    def workload(self, plan: Plan) -> Workload:
        """Bytes of the member in each stage, from the record of the code that trains; seconds are not known."""
        member = replace(self.whole, model=self.split.of_member(self.split.ranks - 1), _sizes={}, _refused=set())
        parameters = list(member.parameters(self._cut(plan)))
        if self.whole.precision.shard_optimizer:
            parameters = [*map(_divided, parameters, self.whole.workload(plan).parameters)]
        buffers = [member.frozen_bytes(layers) for layers in self._cut(plan)]
        stages = [
            StageCosts(
                message_bytes=each.messages.get(stage + 1, 0),
                activation_bytes=each.kept,
                boundary_bytes=each.boundary,
                frozen_bytes=frozen,
            )
            for stage, (each, frozen) in enumerate(zip(self._recorded(plan), buffers, strict=True))
        ]
        return Workload(stages, parameters)

    def moves(self, plan: Plan) -> list[PlannedMoves]:
        """The bytes that the busiest member of each move sends, by stage and phase; sums are rings, links are free."""
        found = list[PlannedMoves]()
        for stage, (layers, each) in enumerate(zip(self._cut(plan), self._recorded(plan), strict=True)):
            sent = {"forward": _sent(each.forward), "backward": _sent(each.backward), "update": self._update(layers)}
            found += [PlannedMoves(stage, phase, nbytes, 0.0) for phase, nbytes in sent.items()]
        return found

    def _update(self, layers: range) -> int:
        """Bytes of the sums, in the team, of the gradients that several members hold."""
        part = self.split.build(layers, self.whole.precision.dtype, "meta", None)
        every = self.split.parameters()
        return sum(each.itemsize * _summed(every[name]) for name, each in part.named_parameters())

    def _cut(self, plan: Plan) -> list[range]:
        return partition(self.whole.layer_costs, plan.depth)

    def _recorded(self, plan: Plan) -> list[TeamRecord]:
        if plan not in self._records:
            feed, precision = self.whole.feed(plan.microbatch), self.whole.precision
            example = feed.inputs(0, 0).to("meta"), feed.targets(0, 0).to("meta")
            last = self.split.ranks - 1
            found = team_records(
                self.split, self._cut(plan), example, precision.dtype, precision, member=last, held=range(plan.depth)
            )
            self._records[plan] = list(found)
        return self._records[plan]


def _divided(piece: Parameters, whole: Parameters) -> Parameters:
    """A member's parameters with its part of an update that all their holders divide."""
    return replace(piece, optimizer_bytes=whole.optimizer_bytes)


def _sent(moves: Sequence[MoveStep]) -> int:
    return sum(
        move.itemsize * max(move.path.elements(rank) for rank in range(move.path.source.mesh.size)) for move in moves
    )


def _summed(shards: Shards) -> int:
    """Elements that a member sends where a ring sums a gradient over the members that hold the same piece."""
    mesh = shards.mesh
    members = [rank for rank in range(mesh.size) if shards.pieces(rank) == shards.pieces(mesh.size - 1)]
    return 2 * (len(members) - 1) * prod(shards.shape(mesh.size - 1)) // len(members)
