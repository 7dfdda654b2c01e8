"""The bytes that one rank of a user's model is planned to hold, for the error that ends it where memory runs out."""

from dataclasses import KW_ONLY, dataclass, field

import torch
from torch.utils._pytree import tree_map_only

from pipelined.api.data.feed import RankFeed
from pipelined.api.planning.layer_row_model import LayerRowModel
from pipelined.api.planning.team_sizes import TeamSizes
from pipelined.api.user_optimizer import OptimizerBuilder
from pipelined.programs.plan import Plan
from pipelined.simulation.memory import planned_memory
from pipelined.training.exchange.parcels import Tree
from pipelined.training.job.numerics import Numerics
from pipelined.training.models.batch import Batch
from pipelined.training.models.split.split_row import SplitRow
from pipelined.training.models.user_model import UserModel


@dataclass
class RankMemoryEstimate:
    """Counts the bytes of a rank when it is called, from the kept shapes of a microbatch.

    Args:
        optimizer: builds the optimizer, whose state is measured.
    """

    rank: int
    plan: Plan
    _: KW_ONLY
    model: UserModel
    numerics: Numerics
    optimizer: OptimizerBuilder
    _shapes: Batch | None = field(default=None, repr=False)

    def keep_shapes(self, feed: RankFeed, step: int) -> None:
        """Keep the shapes of this step's first microbatch, if none is kept yet: the targets on a last stage alone.

        Raises:
            UsageError: as the feed does.
        """
        if self._shapes is None:
            has_last_stage = self.plan.depth - 1 in self.plan.stages_of(self.rank)
            targets = feed.targets(step, 0) if has_last_stage else None
            self._shapes = self._whole_microbatch(feed.inputs(step, 0)), self._whole_microbatch(targets)

    def __call__(self) -> float | None:
        """The bytes; None: no shapes are kept, or the targets of a team are missing.

        Raises:
            Exception: as a layer does that needs values.
        """
        if self._shapes is None:
            return None
        layers = LayerRowModel(self.model, self._shapes, self.optimizer, self.numerics, {})
        sizes: LayerRowModel | TeamSizes = layers
        if isinstance(self.model, SplitRow):
            if self._shapes[1] is None:
                return None
            sizes = TeamSizes(self.model, layers)
        _, worker = self.plan.group_and_worker(self.rank)
        return planned_memory(self.plan, sizes.workload(self.plan), self.numerics.recompute)[worker].total

    def _whole_microbatch(self, tree: Tree) -> Tree:
        """A microbatch before the schedule cuts it, without values."""
        pieces = self.plan.stage_map.pieces
        return tree_map_only(torch.Tensor, lambda tensor: torch.cat([tensor.to("meta")] * pieces), tree)
