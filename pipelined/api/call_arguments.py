"""The arguments of a call that say what it trains: a model, its loss, its optimizer. A plan makes them a job."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from pipelined.api.model.sequential import Loss
from pipelined.api.model.user_model import Layers, TeamRequest, UserModel, bind
from pipelined.api.rank import ArrangedJob, RankFeed
from pipelined.api.user_optimizer import UserOptimizer
from pipelined.programs.plan import Plan
from pipelined.training.exchange.stream import Tree
from pipelined.training.job import CallLocals, Numerics


@dataclass(frozen=True, kw_only=True)
class CallArguments:
    """The arguments of a call that say what it trains and how it computes.

    Args:
        optimizer: makes the settings of one rank's optimizer.
        layout: how a team splits every layer.
    """

    model: Layers
    loss: Loss
    optimizer: Callable[[], UserOptimizer]
    layout: str | None
    seed: int
    numerics: Numerics

    @classmethod
    def of_call(cls, arguments: CallLocals) -> "CallArguments":
        """Those among the arguments of a public call, by name. Raises: as `Numerics.of_call`."""
        numerics = Numerics.of_call(arguments)
        optimizer = partial(UserOptimizer, *(arguments[name] for name in ("optimizer", "clip", "lr_scheduler")))
        same = {name: arguments[name] for name in ("model", "loss", "layout", "seed")}
        return cls(optimizer=optimizer, numerics=numerics, **same)

    def bind(self, example: Tree | None, plan: Plan) -> UserModel:
        """The model for the teams of a plan. Args and Raises: as `user_model.bind`."""
        return bind(self.model, self.loss, self.seed, example, TeamRequest.of(plan, self.layout, self.numerics.dtype))

    def arranged(self, model: UserModel, feed: RankFeed, plan: Plan, recompute: bool | None) -> ArrangedJob:
        """The whole job, with a model that was bound for this plan."""
        numerics = replace(self.numerics, recompute=bool(recompute))
        return ArrangedJob(model, feed, plan, self.optimizer, numerics, seed=self.seed)
