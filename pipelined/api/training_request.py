"""What a call trains, and how: a model, its loss, its optimizer and the numerics. A plan makes it a job."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from pipelined.api.rank import ArrangedJob, RankFeed
from pipelined.api.user_optimizer import UserOptimizer
from pipelined.programs.plan import Plan
from pipelined.training.exchange.stream import Tree
from pipelined.training.job import Numerics
from pipelined.training.models.sequential import Loss
from pipelined.training.models.user_model import Layers, TeamRequest, UserModel, bind


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """What `train` and a `Trainer` are asked for besides the arrangement; each field as there.

    Args:
        make_settings: makes the settings of one rank's optimizer.
    """

    model: Layers
    loss: Loss
    make_settings: Callable[[], UserOptimizer]
    layout: str | None
    seed: int
    numerics: Numerics

    def bind(self, example: Tree | None, plan: Plan) -> UserModel:
        """The model for the teams of a plan. Args and Raises: as `user_model.bind`."""
        return bind(self.model, self.loss, self.seed, example, TeamRequest.of(plan, self.layout, self.numerics.dtype))

    def arranged(self, model: UserModel, feed: RankFeed, plan: Plan, recompute: bool | None) -> ArrangedJob:
        """The whole job, with a model that was bound for this plan."""
        numerics = self.numerics if recompute is None else replace(self.numerics, recompute=recompute)
        return ArrangedJob(model, feed, plan, self.make_settings, numerics, seed=self.seed)
