"""What a node holds at its fullest, counted storage by storage, beside what the plan says."""

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from apps.common.lm.models.gpt2 import UntiedGPT2
from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.ravnest.families.digits import DIGITS_MODEL
from apps.ravnest.families.digits_model import digits_model
from apps.ravnest.families.gpt2_family import BYTES
from apps.ravnest.plan import layer_sizes
from apps.ravnest.task_training import DTYPES
from benchmarks.pipelines.footprint import count_activations, state_bytes
from pipelined.planner.trial import RandomTokens
from pipelined.programs.costs import Costs
from pipelined.programs.plan import Plan
from pipelined.programs.pricing.price import price_schedule
from pipelined.ravnest.planning.stage_sizes import StageRules, StageSizes
from pipelined.schedules import find
from pipelined.training.job.description import JobDescription
from pipelined.training.job.numerics import Numerics
from pipelined.training.optimizer import OptimizerConfig
from tests.numerics.test_ravnest_rounds import on_loop
from tests.numerics.trained import opened
from transports.local import world

MICROBATCH, SEQUENCE, MICROBATCHES = 4, 32, 8
CUT = (range(0, 2), range(2, 5), range(5, 7))
ALIVE = (3, 2, 1)


def model_of(dropout):
    return UntiedGPT2(ModelConfig(5, 32, 4, 64, SEQUENCE, dropout=dropout, tied=False))


async def held(end, job, order):
    """The bytes that a node of a cluster holds at its fullest."""
    async with opened(end, job, orders={0: order}) as trainer:
        kept = count_activations(trainer)
        await trainer.train(range(2))
        state = state_bytes(trainer.local.parameters.values(), trainer.optimizer)
        assert kept.peak_microbatches == ALIVE[end.rank]
        return kept.peak_versions + state["gradients"] + state["optimizer"] + kept.peak_bytes


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("weights", ["kept", "newest"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("dtype", BYTES)
def test_a_node_holds_at_most_a_fiftieth_more_than_planned_and_at_least_six_sevenths_of_it(dtype, dropout, weights):
    model = model_of(dropout)
    job = JobDescription(
        model=model,
        plan=Plan("async_1f1b", 3, 1, MICROBATCH, MICROBATCHES, {"ahead": ",".join(map(str, ALIVE))}),
        feed=RandomTokens(64, (MICROBATCH, SEQUENCE)),
        optimizer_settings=OptimizerConfig(lr=1e-3, steps=2, clip=0),
        numerics=Numerics(
            dtype=DTYPES[dtype],
            autocast=torch.bfloat16 if dtype == "bfloat16" else None,
            recompute_at_newest=weights == "newest",
        ),
        sequence=SEQUENCE,
        seed=0,
        cut=CUT,
    )

    layers = tuple(layer_sizes(model.config, MICROBATCH, SEQUENCE, dtype))
    counted, sizes = with_waiting(counted_bytes(job), layers, CUT), StageSizes(layers, StageRules(weights))
    ratios = [each / found for each, found in zip(sizes.of_cut(CUT, ALIVE), counted, strict=True)]
    assert all(0.98 <= ratio <= 1.15 for ratio in ratios), ratios


class Images:
    """Random images with classes."""

    def inputs(self, step, microbatch):
        return torch.randn(MICROBATCH, DIGITS_MODEL.colours, DIGITS_MODEL.side, DIGITS_MODEL.side)

    def targets(self, step, microbatch):
        return torch.randint(DIGITS_MODEL.classes, (MICROBATCH,))


@pytest.mark.parametrize("weights", ["kept", "newest"])
@pytest.mark.parametrize("cut", [(range(0, 2), range(2, 4), range(4, 5)), (range(0, 1), range(1, 3), range(3, 5))])
def test_a_node_that_reads_a_skip_holds_it_for_all_microbatches_in_flight_and_a_node_between_for_none(weights, cut):
    job = JobDescription(
        model=digits_model(0),
        plan=Plan("async_1f1b", 3, 1, MICROBATCH, MICROBATCHES, {"ahead": ",".join(map(str, ALIVE))}),
        feed=Images(),
        optimizer_settings=OptimizerConfig(lr=1e-3, steps=2, clip=0),
        numerics=Numerics(recompute_at_newest=weights == "newest"),
        seed=0,
        cut=cut,
    )
    layers = tuple(DIGITS_MODEL.layer_sizes(MICROBATCH))
    counted, sizes = counted_bytes(job), StageSizes(layers, StageRules(weights))
    counted = with_waiting(counted, layers, cut)
    ((_, skip),) = layers[-1].reads
    counted[-1] += (ALIVE[0] - ALIVE[-1]) * skip  # the others wait in its mailbox
    ratios = [each / found for each, found in zip(sizes.of_cut(cut, ALIVE), counted, strict=True)]
    assert all(0.98 <= ratio <= 1.05 for ratio in ratios), ratios


def with_waiting(counted, layers, cut):
    """With the inputs that wait in a node's mailbox where more microbatches may be alive in the stage before."""
    more = [0, *(before - alive for before, alive in pairwise(ALIVE))]
    waiting = [count * layers[held.start].input_bytes for count, held in zip(more, cut, strict=True)]
    return [*map(sum, zip(counted, waiting, strict=True))]


def counted_bytes(job):
    """What each node holds at its fullest."""
    shape = replace(job.plan.shape, steps=2)
    orders = price_schedule(find("async_1f1b"), shape, Costs(1, 2)).program.workers

    async def everyone():
        return await asyncio.gather(*(held(end, job, order) for end, order in zip(world(3), orders, strict=True)))

    return on_loop(everyone())
