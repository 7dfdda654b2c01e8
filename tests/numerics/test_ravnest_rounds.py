"""Clusters that are averaged: all hold the same bits, and these are the plain mean of what each cluster trained."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from pipelined.actors.device.executor import TorchExecutor
from pipelined.aio.clock import RealClock
from pipelined.ravnest.averaging.rounds import Rounds, state_by_layer
from pipelined.ravnest.records.generation import Generation
from pipelined.ravnest.records.places import Holder, StagePlace
from pipelined.ravnest.replay import LocalDecisions
from pipelined.training.digests import model_digest
from tests.numerics.own_model import Rows
from tests.numerics.plain import Case
from tests.numerics.ravnest import Together, trained, training_of
from tests.numerics.test_ravnest_cluster import OPTIMIZER
from tests.numerics.trained import opened
from transports import new_event_loop
from transports.local import world

CASE = Case("async_1f1b", 3, 1, 3, dropout=0.2, tied=False)


class KeptDecisions(LocalDecisions):
    """Keeps the committed rounds."""

    def __init__(self):
        super().__init__()
        self.committed = []

    async def commit(self, number):
        self.committed.append(number)
        await super().commit(number)


def rows(*cuts):
    """Clusters with these layers of their nodes."""
    names = iter("abcdefgh")
    return [
        [StagePlace(Holder(name := next(names), f"at {name}", 1), first, end, 1) for first, end in row] for row in cuts
    ]


def on_loop(story):
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(story)


MODELS = {"GPT-2": CASE.model, "norms": Rows(*4 * ["linear", "norm"])}


@pytest.mark.parametrize("kind", MODELS)
def test_a_round_leaves_the_exact_mean_on_every_node_of_uneven_clusters(kind):
    """Of parameters and running statistics; what a norm has counted stays."""
    model = MODELS[kind]
    generation = Generation(1, rows([(0, 3), (3, 8)], [(0, 2), (2, 5), (5, 8)], [(0, 8)]))
    places = [place for row in generation.clusters for place in row]
    number = [cluster for cluster, row in enumerate(generation.clusters) for _ in row]

    layers = state_by_layer(model, torch.float64)

    async def story():
        decisions, executor, held = KeptDecisions(), TorchExecutor("cpu", RealClock()), []
        for place, cluster in zip(places, number, strict=True):
            held.append({})
            for name, one in [pair for layer in layers[place.first : place.end] for pair in layer.items()]:
                value = filled(name, one.shape, cluster)
                held[-1][name] = nn.Parameter(value) if one.requires_grad else value.to(one.dtype)
        rounds = [
            Rounds(end.rank, opened_as(end), generation, layers, tensors=mine, executor=executor, decisions=decisions)
            for end, mine in zip(world(len(places)), held, strict=True)
        ]
        await asyncio.gather(*(each.average() for each in rounds))
        await asyncio.gather(*(each.average() for each in rounds))
        executor.close()
        return decisions.committed, held

    written, held = on_loop(story())
    assert written == [1, 2]
    for mine, cluster in zip(held, number, strict=True):
        for name, tensor in mine.items():
            mean = sum(filled(name, tensor.shape, each) for each in range(3)) / 3
            expected = mean if tensor.is_floating_point() else filled(name, tensor.shape, cluster).to(tensor.dtype)
            assert torch.equal(tensor.detach(), expected), name
    assert any("running_var" in name for mine in held for name in mine) == (kind == "norms")


def opened_as(end):
    opening = asyncio.get_running_loop().create_future()
    opening.set_result(end)
    return opening


def filled(name, shape, cluster):
    """Whole numbers that depend on all three, so that sums are exact; multiples of 3, so that the mean is, too."""
    draw = np.random.default_rng([cluster, *name.encode()])
    return 3 * torch.from_numpy(np.asarray(draw.integers(-1000, 1000, tuple(shape)))).double()


def test_the_layers_elements_are_those_of_the_whole_model():
    whole = CASE.model.build(range(CASE.model.layers), torch.float64, "meta", None)
    layers = state_by_layer(CASE.model, torch.float64)
    assert sum(each.numel() for layer in layers for each in layer.values()) == sum(
        p.numel() for p in whole.parameters()
    )


@pytest.mark.in_turns(6)
@pytest.mark.parametrize(("steps", "codec"), [(6, "none"), (5, "none"), (5, "blockwise8")])
def test_two_clusters_train_as_two_pipelines_in_one_process_that_are_averaged_by_hand(steps, codec):
    """One microbatch alive on each stage, so that the order of work is the same in every run."""
    training = training_of(CASE, steps, OPTIMIZER, torch.float32, every=2)
    training = replace(training, numerics=replace(training.numerics, compress=codec))
    together = Together(training, 3, ahead=1)
    told = trained(together, clusters=2)
    losses, digests = on_loop(by_hand(training, together.generation))
    assert sorted((each.step, cluster, each.loss) for cluster, each in told) == sorted(losses)
    assert len(set(digests)) == 1 and f"average {digests[0]}" in together.said
    assert sorted(map(len, together.generation.clusters)) == [1, 2]
    if codec != "none":
        plain = replace(training, numerics=replace(training.numerics, compress="none"))
        assert on_loop(by_hand(plain, together.generation))[0] != losses, "the codec changes nothing"


async def by_hand(training, generation):
    """The losses as (step, cluster, loss), and each cluster's digest, of trainers that average their parameters."""
    losses, many = [], len(generation.clusters)
    async with AsyncExitStack() as stack:
        trainers, ends = [], []
        for number in range(many):
            job = training.job(generation, number)
            ends.append(world(job.plan.world_size))
            trainers.append([await stack.enter_async_context(opened(end, job)) for end in ends[-1]])
        for spans in zip(*(training.spans_of(generation, number) for number in range(many)), strict=True):
            for number, span in enumerate(spans):
                if span:
                    losses += await span_of(trainers[number], span, number, many)
            held = [{n: p for rank in ranks for n, p in rank.local.parameters.items()} for ranks in trainers]
            for name in held[0]:
                mean = sum(each[name].detach() for each in held) / many
                for each in held:
                    each[name].data.copy_(mean)
        digests = []
        for ranks, worlds in zip(trainers, ends, strict=True):
            every = [model_digest(end, rank.local) for rank, end in zip(ranks, worlds, strict=True)]
            digests.append((await asyncio.gather(*every))[0])
    return losses, digests


async def span_of(ranks, span, number, many):
    reports = []
    first, *others = ranks
    last, *_ = await asyncio.gather(first.train(span, on_step=reports.append), *(each.train(span) for each in others))
    return [(number + report.step * many, number, report.loss) for report in [*reports, last]]
