"""A row of layers that a team splits, as the planner takes a model: the pieces of its fullest member, and its moves."""

from dataclasses import dataclass, field, replace
from functools import cached_property

from pipelined.api.planning.layer_row_model import LayerRowModel
from pipelined.planner.planner_model import StageMoves
from pipelined.planner.predicted_moves import BYTE_COUNTER, PHASES, PredictedMoves
from pipelined.programs.partition import partition
from pipelined.programs.plan import Plan
from pipelined.sharding.operators.tape import sum_path
from pipelined.simulation import Machine, Parameters, StageCosts, Workload
from pipelined.training.exchange.compression import NONE
from pipelined.training.models.split.split_row import SplitRow
from pipelined.training.teams.team_records import TeamRecord, team_records


@dataclass(frozen=True)
class TeamSizes:
    """The sizes of the last member, which has the larger of uneven parts.

    Args:
        split_row: the row, as the team splits it.
        row: the same row, as one rank holds it.
    """

    split_row: SplitRow
    row: LayerRowModel
    _records: dict[tuple[int, int], list[TeamRecord]] = field(default_factory=dict, compare=False, repr=False)

    def workload(self, plan: Plan) -> Workload:
        """Bytes of the member in each stage, from the record of the code that trains; seconds are not known."""
        member, pieces = self._member, plan.stage_map.pieces
        parameters = list(member.parameters(self._cut(plan)))
        if self.row.precision.shard_optimizer:
            parameters = [*map(_with_divided_update, parameters, self.row.workload(plan).parameters)]
        buffers = [member.frozen_bytes(layers) for layers in self._cut(plan)]
        stages = [
            StageCosts(
                message_bytes=pieces * record.messages.get(stage + 1, 0),
                activation_bytes=pieces * record.kept_bytes,
                boundary_bytes=pieces * record.boundary_bytes,
                frozen_bytes=frozen,
            )
            for stage, (record, frozen) in enumerate(zip(self._record_microbatch(plan), buffers, strict=True))
        ]
        return Workload(stages, parameters)

    def moves(self, plan: Plan) -> list[PredictedMoves]:
        """The bytes that the busiest member of each move sends, by stage and phase; sums are rings, links are free."""
        return [
            PredictedMoves(stage, phase, round(getattr(moves, phase)), 0.0)
            for stage, moves in enumerate(self.stage_moves(plan, BYTE_COUNTER))
            for phase in PHASES
        ]

    def stage_moves(self, plan: Plan, machine: Machine) -> list[StageMoves]:
        """The seconds of each stage's moves."""
        links, node = machine.sum_links, machine.node
        parameters = self.split_row.parameters()
        dtype = self.row.precision.dtype
        seconds = list[StageMoves]()
        for layers, record in zip(self._cut(plan), self._record_microbatch(plan), strict=True):
            forward = sum(move.path.seconds(links, move.itemsize, node) for move in record.forward)
            backward = sum(move.path.seconds(links, move.itemsize, node) for move in record.backward)
            stage = self.split_row.build(layers, dtype, "meta", None)
            names = [name for name, parameter in stage.named_parameters() if parameter.requires_grad]
            sums = [sum_path(parameters[name]) for name in names]
            update = sum(path.seconds(links, dtype.itemsize, node) for path in sums)
            seconds.append(StageMoves(forward, backward, update))
        return seconds

    @cached_property
    def _member(self) -> LayerRowModel:
        """What the member holds, as a row of its own."""
        model = self.split_row.member_model(self.split_row.ranks - 1)
        return replace(self.row, model=model, _sizes={}, _refused_rows=set())

    def _cut(self, plan: Plan) -> list[range]:
        return partition(self.row.layer_costs, plan.depth)

    def _record_microbatch(self, plan: Plan) -> list[TeamRecord]:
        """The records of a microbatch, without a codec."""
        key = plan.rows, plan.depth
        if key not in self._records:
            feed = self.row.feed(plan.rows)
            precision = self.row.precision
            example = feed.inputs(0, 0).to("meta"), feed.targets(0, 0).to("meta")
            self._records[key] = list(
                team_records(
                    self.split_row,
                    self._cut(plan),
                    example,
                    precision.dtype,
                    replace(precision, compress=NONE),
                    member=self.split_row.ranks - 1,
                    held=range(plan.depth),
                )
            )
        return self._records[key]


def _with_divided_update(member_parameters: Parameters, row_parameters: Parameters) -> Parameters:
    """A member's parameters with its part of an update that all their holders divide."""
    return replace(member_parameters, optimizer_bytes=row_parameters.optimizer_bytes, updaters=row_parameters.updaters)
