"""What a call trains, and how: a model, its loss, its optimizer and the numerics. A plan makes it a job."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pipelined.api.arranged_job import ArrangedJob
from pipelined.api.data.feed import RankFeed
from pipelined.api.planning.planned import Planned
from pipelined.api.user_optimizer import UserOptimizer
from pipelined.errors import whole
from pipelined.process.launch import Launch
from pipelined.programs.plan import Plan
from pipelined.training.exchange.parcels import Tree
from pipelined.training.job.numerics import Numerics
from pipelined.training.models.sequential import Loss
from pipelined.training.models.user_model import Layers, TeamRequest, bind


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", whole("seed", self.seed))

    def arranged(
        self, plan: Plan | Planned, feed: RankFeed, example: Tree | None, recompute: bool | None, launch: Launch
    ) -> ArrangedJob:
        """The whole job by a plan; raises as `bind` does, and UsageError where what was planned is another model."""
        own, layout = (plan.plan, None) if isinstance(plan, Planned) else (plan, self.layout)
        team = TeamRequest.of(own, layout, self.numerics.dtype)
        model = bind(self.model, self.loss, self.seed, example, team)
        if isinstance(plan, Planned):
            plan.plan_file.require(Path("plan="), model.identity(), launch.world_size)
            recompute = plan.recompute
        numerics = self.numerics if recompute is None else replace(self.numerics, recompute=recompute)
        return ArrangedJob(model, feed, own, self.make_settings, numerics, seed=self.seed)
