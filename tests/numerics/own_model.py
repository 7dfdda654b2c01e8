"""A model of a user's own: rows of torch's modules, some of them frozen, without parameters, random or with buffers.

With it a plain loop over microbatches, which uses none of the runtime.
"""

import torch
from torch import nn

from pipelined.programs.plan import Plan
from pipelined.random.keyed_random import KeyedRandom, drawing_from, keyed_generator
from pipelined.training.job.description import JobDescription
from pipelined.training.job.numerics import Numerics
from pipelined.training.optimizer import OptimizerConfig
from tests.numerics import trained
from tests.numerics.plain import AdamW

WIDTH = 6
OPTIMIZER = OptimizerConfig(lr=1e-2, steps=4, warmup=1, clip=0.0)


def linear():
    return nn.Linear(WIDTH, WIDTH)


KINDS = {
    "linear": linear,
    "frozen": lambda: linear().requires_grad_(False),
    "tanh": nn.Tanh,
    "dropout": lambda: nn.Sequential(linear(), nn.Dropout(0.5)),
    "norm": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.BatchNorm1d(WIDTH)),
}


class Part(nn.Module):
    def __init__(self, kinds, layers):
        super().__init__()
        self.row = nn.ModuleDict({str(i): KINDS[kinds[i]]() for i in layers})

    def forward(self, x):
        for layer in self.row.values():
            x = layer(x)
        return x


class Rows:
    """A layer for each kind."""

    def __init__(self, *kinds):
        self.kinds, self.layers = kinds, len(kinds)

    def costs(self, sequence):
        return [1.0] * self.layers

    def build(self, layers, dtype, device, seed):
        part = Part(self.kinds, layers).to(dtype).to(device)
        if seed is not None and torch.device(device).type != "meta":
            with torch.no_grad():
                for name, parameter in part.named_parameters():
                    parameter.normal_(0, 0.4, generator=keyed_generator(seed, name))
        return part

    def loss(self, output, targets):
        return (output - targets).square().mean()

    def identity(self):
        return {"rows": list(self.kinds)}


class Feed:
    def inputs(self, step, microbatch):
        return torch.randn(4, WIDTH, generator=keyed_generator(step, microbatch), dtype=torch.float64)

    def targets(self, step, microbatch):
        return self.inputs(step, microbatch).flip(1)


def plan(schedule, depth, width=1, microbatches=4):
    return Plan(schedule, depth, width, 4, microbatches)


def on_ranks(model, plan, work, recompute=False, feed=None):
    """What a piece of work with each rank's trainer returns, in rank order."""
    numerics, feed = Numerics(dtype=torch.float64, recompute=recompute), feed or Feed()
    job = JobDescription(model=model, plan=plan, feed=feed, optimizer_settings=OPTIMIZER, numerics=numerics, seed=5)
    return trained.on_ranks(job, work)


def steps(count):
    """Train so many steps; the losses, and every tensor held at the end."""

    async def work(trainer):
        losses = [(await trainer.step(step)).loss for step in range(count)]
        return losses, {name: tensor.detach().clone() for name, tensor in trainer.local.tensors.items()}

    return work


def plain(model, microbatches, count, feed=None):
    """The same in one process with nothing but torch."""
    feed = feed or Feed()
    module = model.build(range(model.layers), torch.float64, "cpu", seed=5)
    trained = [p for p in module.parameters() if p.requires_grad]
    groups = [[p for p in trained if p.dim() >= 2], [p for p in trained if p.dim() < 2]]
    decays = zip(groups, (OPTIMIZER.weight_decay, 0.0), strict=True)
    optimizer = AdamW([{"params": group, "weight_decay": decay} for group, decay in decays], betas=OPTIMIZER.betas)
    losses = []
    for step in range(count):
        optimizer.zero_grad()
        several = []
        for m in range(microbatches):
            with drawing_from(KeyedRandom(5, step, m)):
                several.append(model.loss(module(feed.inputs(step, m)), feed.targets(step, m)) / microbatches)
        sum(several).backward()
        for group in optimizer.param_groups:
            group["lr"] = OPTIMIZER.rate(step)
        optimizer.step()
        losses.append(float(sum(several).detach()))
    return losses, {**dict(module.named_parameters()), **dict(module.named_buffers())}
