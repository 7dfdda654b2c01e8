"""What ranks of a user's job compare before the first step."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from pipelined.api.arranged_job import ArrangedJob
from pipelined.api.data.batches import StepFeed
from pipelined.api.user_optimizer import UserOptimizer
from pipelined.errors import UsageError
from pipelined.programs.costs import Costs
from pipelined.programs.plan import Plan
from pipelined.training.job.numerics import Numerics
from pipelined.training.models.user_model import TeamRequest, bind

LAYERS = [partial(nn.Linear, 4, 4)] * 8


def arranged(plan, layout=None, **settings):
    sgd = UserOptimizer(partial(torch.optim.SGD, lr=0.1), **settings)
    model = bind(LAYERS, nn.functional.mse_loss, 0, None, TeamRequest.of(plan, layout, torch.float32))
    feed = StepFeed(plan.rows, plan.total_microbatches, torch.float32)
    return ArrangedJob(model, feed, plan, lambda: sgd, Numerics(), seed=0), sgd


def settings(plan, layout=None):
    job, sgd = arranged(plan, layout)
    return job.arguments(sgd)


def others(first, last):
    return {name: (first[name], last[name]) for name in first if first[name] != last[name]}


@pytest.mark.parametrize(
    "schedule, knob, first, last",
    [("chimera", "pipes", 0, 4), ("chimera", "scale", "direct", "backward-halving"), ("async_1f1b", "ahead", "", "2")],
)
def test_ranks_compare_every_knob_of_their_plans(schedule, knob, first, last):
    """With other pipes a stage has other holders, and ranks waited for messages that no rank sent."""
    plans = [Plan(schedule, 4, 1, 2, 8, knobs={knob: value}) for value in (first, last)]
    assert others(*map(settings, plans)) == {knob: (str(first), str(last))}


def test_ranks_compare_the_split_of_a_model_and_no_costs_of_gaps():
    plan = Plan("gpipe", 1, 1, 2, 4, tensor=2)
    (name, both), *more = others(settings(plan, "data"), settings(plan, "megatron")).items()
    assert (name, more) == ("layout", [])
    for words, factors in zip(both, ("2.1.1", "1.2.1"), strict=True):
        assert words.startswith(f"2 ranks a worker; 0 (Linear) {factors}, ")
    assert settings(plan) == settings(plan, "megatron") == settings(replace(plan, costs=Costs(2.0)))


@pytest.mark.parametrize(
    "asked, name",
    [({"clip": 1.0}, "clip"), ({"scheduler": partial(torch.optim.lr_scheduler.StepLR, step_size=1)}, "lr_scheduler")],
)
def test_a_rank_refuses_what_needs_a_flush_before_the_first_step(asked, name):
    job, sgd = arranged(Plan("pipedream", 2, 1, 2, 4), **asked)
    with pytest.raises(UsageError, match=f"pipedream updates .*; leave {name} out, or choose a schedule with a flush"):
        job.describe(sgd)
    job, sgd = arranged(Plan("gpipe", 2, 1, 2, 4), **asked)
    assert job.describe(sgd).optimizer_settings is sgd
