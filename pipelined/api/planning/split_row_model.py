"""A user's row of layers that teams may split, as the planner takes a model: see `SplitModel`."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipelined.api.planning.layer_row_model import IMPOSSIBLE, LayerRowModel
from pipelined.api.planning.team_sizes import TeamSizes
from pipelined.errors import UsageError
from pipelined.planner.planner_model import LayoutSizes, StageMoves, is_open
from pipelined.programs.partition import partition
from pipelined.programs.plan import Plan
from pipelined.programs.updates.bucket_names import Stages
from pipelined.sharding import Shards
from pipelined.simulation import Machine, Parameters, StageCosts, Workload
from pipelined.training.models.sequential import LayeredModel
from pipelined.training.models.split.fronts import RowFront, row_front
from pipelined.training.models.split.layer import BY_ROWS, team_mesh
from pipelined.training.models.split.search import AUTO, RowSearch
from pipelined.training.models.split.split_row import SplitRow, meta_inputs
from pipelined.training.models.split.table import LAYOUT as MEGATRON
from pipelined.training.optimizer import require_elementwise

UNSPLIT_LAYOUT = "data"
"""The layout of a row without factors, which has no other."""


@dataclass(frozen=True)
class SplitRowModel(LayerRowModel):
    """See `LayerRowModel`."""

    _teams: dict[tuple[Any, ...], TeamSizes] = field(default_factory=dict, compare=False, repr=False, kw_only=True)
    _possible: dict[tuple[int, int], bool] = field(default_factory=dict, compare=False, repr=False, kw_only=True)
    _fronts: dict[tuple[Any, ...], tuple[list[str], RowFront]] = field(
        default_factory=dict, compare=False, repr=False, kw_only=True
    )

    def can_split(self, plan: Plan) -> bool:
        """See `SplitModel`.

        Raises:
            UsageError: no team can split the model, and the number of its ranks is given.
        """
        if not self._is_splittable:
            if self.fixed.get("tensor") != AUTO:
                self._require_splittable()
            return False
        if is_open(plan):
            key = plan.tensor, plan.rows
            if key not in self._possible:
                self._possible[key] = not self._search(plan, Machine()).reason_not_to_split(plan.tensor)
            return self._possible[key]
        try:
            self._team(plan)
        except UsageError:
            return False
        return True

    def divides(self, plan: Plan) -> bool:
        """See `SplitModel`: the numerics alone divide an update."""
        return False

    def in_next_zero_state(self, plan: Plan) -> None:
        """See `SplitModel`: a row's parameters are whole in their teams, or split by factors."""

    def build_split(self, plan: Plan) -> SplitRow:
        """See `SplitModel`."""
        assert isinstance(self.model, LayeredModel), "`can_split` refuses others"
        return SplitRow(self.model, ranks=plan.tensor, layout=plan.layout, rows=plan.rows)

    def build_member(self) -> SplitRow | None:
        """See `MeasuredModel`: split as given, else as in megatron, else by what moves for the shortest time."""
        tensor = self.fixed.get("tensor", 1)
        layout = self.fixed.get("layout")
        ranks = 2 if tensor == AUTO else tensor
        if ranks == 1 or not self._is_splittable or not isinstance(self.model, LayeredModel):
            return None
        for text in (layout, AUTO):
            try:
                return SplitRow(
                    self.model, self.batch_of_step[0], ranks=ranks, layout=text, rows=max(ranks, self.batch)
                )
            except UsageError:
                continue
        return None

    def layouts(self, plan: Plan, machine: Machine) -> tuple[Sequence[str], NDArray[np.float64]]:
        """See `SplitModel`."""
        texts, front = self._front(plan, machine)
        return texts, np.stack([front.cost("forward") + front.cost("backward"), front.cost("update")], axis=2)

    def layout_sizes(self, plan: Plan, machine: Machine, groups: Sequence[Stages]) -> LayoutSizes:
        """See `SizedLayouts`. The optimizer keeps at least as much of a number as of all numbers together."""
        _, front = self._front(plan, machine)
        workload = self.workload(plan)
        even_shares = self.team_workload(plan, machine)[0].parameters
        numbers = front.cost("numbers")
        kept_bytes = front.cost("kept") * plan.stage_map.pieces
        frozen = np.array([stage.frozen_bytes for stage in workload.stages]) + np.zeros_like(numbers)
        elements = np.zeros((len(numbers), len(groups)))
        for entry, (stages, full, share) in enumerate(zip(groups, workload.parameters, even_shares, strict=True)):
            if len(stages) == 1:  # what several stages share counts in the first
                (stage,) = stages
                elements[:, entry] = numbers[:, stage]
                if not self.precision.shard_optimizer:
                    held_bytes = full.kept_bytes * np.minimum(1.0, numbers[:, stage] / max(1, full.elements))
                    frozen[:, stage] += np.maximum(0.0, held_bytes - share.kept_bytes)
        return LayoutSizes(elements, kept_bytes, np.floor(frozen))

    def team_workload(self, plan: Plan, machine: Machine) -> tuple[Workload, Sequence[StageMoves]]:
        """See `SplitModel`."""
        if is_open(plan):
            return self._evenly_shared(plan), [StageMoves()] * plan.depth
        sizes = self._team(plan)
        return sizes.workload(plan), sizes.stage_moves(plan, machine)

    @cached_property
    def _is_splittable(self) -> bool:
        """Whether any team can split the model."""
        try:
            self._require_splittable()
        except UsageError:
            return False
        return True

    def _require_splittable(self) -> None:
        """Split the model over two ranks. Raises UsageError: no team can split it."""
        rows, (inputs, targets) = self.batch, self.batch_of_step
        if not isinstance(self.model, LayeredModel):
            raise UsageError("a traced module is not split over ranks; give its layers as pp.Sequential, or tensor 1")
        if self.precision.exact_sums or self.precision.recompute_attention:
            raise UsageError("a team takes neither exact sums nor recomputed attentions; use tensor 1")
        if not isinstance(targets, torch.Tensor):
            raise UsageError(f"a team takes targets of one tensor (a {type(targets).__name__}); use tensor 1")
        meta_inputs(inputs, rows, self.precision.dtype)
        require_elementwise(self.make_optimizer([torch.nn.Parameter(torch.zeros(2, 2))]))
        plan = Plan("gpipe", 1, 1, rows, 1, tensor=2, layout=UNSPLIT_LAYOUT if rows > 1 else MEGATRON)
        TeamSizes(self.build_split(plan), self).workload(plan)

    def _team(self, plan: Plan) -> TeamSizes:
        key = plan.tensor, plan.layout, plan.rows
        if key not in self._teams:
            self._teams[key] = TeamSizes(self.build_split(plan), self)
        return self._teams[key]

    def _search(self, plan: Plan, machine: Machine) -> RowSearch:
        assert isinstance(self.model, LayeredModel), "`can_split` refuses others"
        return RowSearch(
            row=self.model.meta_layers,
            aliases=self.model.aliases,
            ranks=plan.tensor,
            inputs=meta_inputs(self.batch_of_step[0], plan.rows, self.precision.dtype),
            dtype=self.precision.dtype,
            starts=[stage.start for stage in partition(self.layer_costs, plan.depth)][1:],
            links=machine.sum_links,
            node=machine.node,
            counts_kept=True,
        )

    def _front(self, plan: Plan, machine: Machine) -> tuple[list[str], RowFront]:
        key = plan.tensor, plan.rows, plan.depth, plan.microbatches, machine
        if key not in self._fronts:
            row = self._search(plan, machine)
            front = row_front(row, plan.microbatches)
            self._fronts[key] = [row.layout_text(factors) or UNSPLIT_LAYOUT for factors in front.factors], front
        return self._fronts[key]

    def _evenly_shared(self, plan: Plan) -> Workload:
        """The least that any layout holds: even shares of the parameters, and each rank's rows between stages."""
        workload = self.workload(plan)
        ranks = plan.tensor
        stages = list[StageCosts]()
        received_bytes = 0
        for index, stage in enumerate(workload.stages):
            is_last = index == plan.depth - 1
            if stage.activation_bytes < IMPOSSIBLE:
                sent_bytes = self._share(stage.message_bytes, plan)
                stage = replace(stage, activation_bytes=received_bytes, boundary_bytes=received_bytes)
            else:
                sent_bytes = IMPOSSIBLE
            stages.append(replace(stage, message_bytes=0 if is_last else sent_bytes))
            received_bytes = sent_bytes
        divided = self.precision.shard_optimizer
        return Workload(stages, [_even_share(group, ranks, divided=divided) for group in workload.parameters])

    def _share(self, nbytes: int, plan: Plan) -> int:
        """Bytes of the last rank's rows."""
        rows = Shards(team_mesh(plan.tensor), (plan.rows,), BY_ROWS).size(plan.tensor - 1)
        return nbytes * rows // plan.rows


def _even_share(group: Parameters, ranks: int, *, divided: bool) -> Parameters:
    """An even share of parameters. Where holders divide an update, the optimizer's state is divided already."""
    optimizer_bytes = group.optimizer_bytes
    optimizer_bytes = optimizer_bytes if divided or optimizer_bytes is None else optimizer_bytes // ranks
    return replace(group, elements=group.elements // ranks, optimizer_bytes=optimizer_bytes)
