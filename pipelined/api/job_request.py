"""What a call asks for, from the keywords that `train`, `Trainer` and `plan` share. A plan makes it a job."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pipelined.api.arranged_job import ArrangedJob
from pipelined.api.arrangement import RequestedArrangement
from pipelined.api.data.feed import RankFeed
from pipelined.api.planning.planned import Planned, as_plan
from pipelined.api.user_optimizer import OptimizerBuilder, SchedulerBuilder, UserOptimizer
from pipelined.errors import whole
from pipelined.process.launch import Launch, detect
from pipelined.programs.plan import Plan
from pipelined.schedules import KnobValue, SomeSchedule
from pipelined.training.exchange.parcels import Tree
from pipelined.training.job.numerics import Numerics, products_dtype
from pipelined.training.models.sequential import Loss
from pipelined.training.models.user_model import Layers, TeamRequest, bind


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A model, how it is trained, and how the job is arranged on the ranks that were started; each field as in `train`.

    Args:
        make_settings: makes the settings of one rank's optimizer.
    """

    model: Layers
    loss: Loss
    make_settings: Callable[[], UserOptimizer]
    seed: int
    numerics: Numerics
    arrangement: RequestedArrangement
    launch: Launch

    @classmethod
    def of_call(
        cls, function: Callable[..., Any], *, model: Layers, loss: Loss, optimizer: OptimizerBuilder,
        schedule: SomeSchedule | None, depth: int | None, width: int | None, microbatches: int | None,
        tensor: int | str, layout: str | None, recompute: bool | None, compile: bool,
        dtype: torch.dtype, autocast: bool | torch.dtype, seed: int,
        clip: float = 0.0, lr_scheduler: SchedulerBuilder | None = None,
        all_reduce: str, exact_sums: bool, compress: str, shard_optimizer: bool, offload_optimizer: bool,
        delayed_update: bool, masters: torch.dtype | None,
        transport: str, share_devices: bool, knobs: Mapping[str, KnobValue],
    ) -> "JobRequest":  # fmt: skip
        """The request that a call makes by its arguments, each as in `train`.

        Args:
            function: the function that is called; errors know its arguments.
        Raises:
            UsageError: an argument is impossible, or excludes another.
        """
        return cls(
            model=model, loss=loss, make_settings=partial(UserOptimizer, optimizer, clip, lr_scheduler),
            seed=whole("seed", seed),
            numerics=Numerics(
                compile=compile, dtype=dtype, autocast=products_dtype(autocast),
                all_reduce=all_reduce, exact_sums=exact_sums, compress=compress, shard_optimizer=shard_optimizer,
                offload_optimizer=offload_optimizer, delayed_update=delayed_update, masters=masters,
            ),
            arrangement=RequestedArrangement(
                schedule=schedule, depth=depth, width=width, microbatches=microbatches,
                tensor=tensor, layout=layout, recompute=recompute, knobs=knobs, function=function,
            ),
            launch=replace(detect(os.environ, transport), share_devices=share_devices),
        )  # fmt: skip

    def arrange(self, plan: Plan | Planned, feed: RankFeed, example: Tree | None) -> ArrangedJob:
        """The whole job by a plan; raises as `bind` does, and UsageError where another model was planned."""
        layout = self.arrangement.layout
        recompute = self.arrangement.recompute
        if isinstance(plan, Planned):
            layout = None
            recompute = plan.recompute
        team = TeamRequest.of(as_plan(plan), layout, self.numerics.dtype)
        model = bind(self.model, self.loss, self.seed, example, team)
        if isinstance(plan, Planned):
            plan.plan_file.require(Path("plan="), model.identity(), self.launch.world_size)
        numerics = self.numerics if recompute is None else replace(self.numerics, recompute=recompute)
        return ArrangedJob(model, feed, as_plan(plan), self.make_settings, numerics, seed=self.seed)
