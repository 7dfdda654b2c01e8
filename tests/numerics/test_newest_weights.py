"""One version of the weights: each stage computes anew with its newest ones, as a plain loop over stages does."""

import asyncio
from collections import defaultdict, deque
from dataclasses import replace

import pytest
import torch

from pipelined.programs.costs import Costs
from pipelined.programs.plan import Plan
from pipelined.programs.pricing.price import price_schedule
from pipelined.random.keyed_random import KeyedRandom, drawing_from
from pipelined.schedules import find
from pipelined.training.optimizer import OptimizerConfig, update
from tests.numerics.plain import Case
from tests.numerics.test_ravnest_rounds import on_loop
from tests.numerics.trained import opened
from transports.local import world

STEPS, MICROBATCHES, ALIVE = 4, 3, "5,3,2"
CUT = (range(0, 3), range(3, 5), range(5, 8))
CASE = Case("async_1f1b", 3, 1, MICROBATCHES, dropout=0.2, tied=False)


def job_of(**numerics):
    """Three stages, on each of which several microbatches are alive."""
    optimizer = OptimizerConfig(lr=1e-2, steps=STEPS, warmup=2, clip=0)
    job = CASE.job(torch.float32, optimizer_settings=optimizer, **numerics)
    return replace(job, plan=Plan("async_1f1b", 3, 1, 2, MICROBATCHES, {"ahead": ALIVE}), cut=CUT)


class PlainStage:
    """The layers of one stage, its optimizer, and the inputs of the microbatches alive on it."""

    def __init__(self, job, layers):
        self.job, self.first, self.last = job, layers.start == 0, layers.stop == job.model.layers
        self.module = job.model.build(layers, torch.float32, "cpu", seed=job.seed)
        self.optimizer = job.optimizer_settings.build(dict(self.module.named_parameters()))
        self.kept, self.updates = {}, 0

    def forward(self, number, x):
        """The output; of the last stage the loss."""
        self.kept[number] = x
        with torch.no_grad():
            return self.output(number, x)

    def backward(self, number, gradient):
        """The gradient of the input, by the newest weights, which are then updated."""
        x = self.kept.pop(number)
        x = x if self.first else x.clone().requires_grad_()
        self.optimizer.zero_grad()
        self.output(number, x).backward(gradient)
        update(self.optimizer, self.job.optimizer_settings.rate(self.updates // MICROBATCHES), 1.0)
        self.updates += 1
        return x.grad

    def output(self, number, x):
        step, inside = divmod(number, MICROBATCHES)
        with drawing_from(KeyedRandom(self.job.seed, step, inside)):
            output = self.module(x)
        return self.job.model.loss(output, self.job.feed.targets(step, inside)) if self.last else output


def plain(job, orders):
    """The loss of each step, and the parameters at the end, of stages that each follow an order.

    An instruction runs when its message is there, as in a queue between two stages.
    """
    stages, waiting = [PlainStage(job, layers) for layers in job.cut], [deque(order) for order in orders]
    outputs, gradients, losses = defaultdict(dict), defaultdict(dict), defaultdict(list)
    outputs[-1] = {n: job.feed.inputs(*divmod(n, MICROBATCHES)) for n in range(STEPS * MICROBATCHES)}
    gradients[len(stages)] = dict.fromkeys(outputs[-1])
    while any(waiting):
        for at, stage in enumerate(stages):
            arrived = {"F": outputs[at - 1], "B": gradients[at + 1]}
            while waiting[at] and waiting[at][0].microbatch in arrived[waiting[at][0].op]:
                op, number = waiting[at][0].op, waiting[at].popleft().microbatch
                message = arrived[op].pop(number)
                if op == "B":
                    gradients[at][number] = stage.backward(number, message)
                else:
                    outputs[at][number] = stage.forward(number, message)
    for number, loss in outputs[len(stages) - 1].items():
        losses[number // MICROBATCHES].append(float(loss))
    values = {name: p.detach() for stage in stages for name, p in stage.module.named_parameters()}
    return [sum(losses[step]) / MICROBATCHES for step in range(STEPS)], values


def trained(job, orders):
    """The same of the ranks of a pipeline."""

    async def rank(end, order):
        reports = []
        async with opened(end, job, orders={0: order}) as trainer:
            reports.append(await trainer.train(range(STEPS), on_step=reports.append))
            return reports, {name: p.detach().clone() for name, p in trainer.local.parameters.items()}

    async def everyone():
        return await asyncio.gather(*(rank(end, order) for end, order in zip(world(3), orders, strict=True)))

    found = on_loop(everyone())
    return [report.loss for report in found[0][0]], {n: p for _, values in found for n, p in values.items()}


def orders_of(job):
    """Of each stage, as if forwards took one second and backwards two."""
    return price_schedule(find("async_1f1b"), replace(job.plan.shape, steps=STEPS), Costs(1, 2)).program.workers


def test_stages_that_keep_their_newest_weights_train_what_a_plain_loop_trains():
    job = job_of(recompute_at_newest=True)
    orders = orders_of(job)
    losses, values = plain(job, orders)
    found, parameters = trained(job, orders)
    assert found == pytest.approx(losses, rel=1e-12)
    assert parameters.keys() == values.keys()
    assert all(torch.equal(parameters[name], value) for name, value in values.items())


def test_newest_weights_are_others_than_those_of_the_forward():
    job = job_of()
    orders = orders_of(job)
    assert trained(job, orders)[0] != pytest.approx(plain(job, orders)[0], rel=1e-5)
