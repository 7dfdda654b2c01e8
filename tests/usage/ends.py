"""A user's own program that ends by an error of `pipelined`, which it does not catch, at the PLACE that is named.

python -m tests.usage.ends PLACE
"""

import os
import signal
import sys

import torch
from torch import nn

import pipelined as pp

RANK = os.environ.get("PMI_RANK", "1")
"""Without a launcher this process has every rank, also the one that refuses alone."""
X = torch.ones(8, 4)
LAYERS, PLAN = [lambda: nn.Linear(4, 4)] * 2, pp.Plan("gpipe", 2, 1, 4, 2)
GIVEN = {"loss": nn.functional.mse_loss, "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1)}


def no_loss(output, targets):
    raise ZeroDivisionError("no such loss")


def train(**more):
    return pp.train(LAYERS, [(X, X)], **GIVEN | {"depth": 2, "microbatches": 2} | more)


def step(rows, **more):
    with pp.Trainer(LAYERS, PLAN, **GIVEN | more) as trainer:
        trainer.step((X, X))
        trainer.step((X[:rows], X[:rows]))


def step_without_a_block():
    pp.Trainer(LAYERS, PLAN, **GIVEN).step((X[:2], X[:2]))


PLACES = {
    "arguments": lambda: train(autocast=torch.int8),
    "arguments of one rank": lambda: train(autocast=torch.int8 if RANK == "1" else False),
    "batches": lambda: train(export="/absent/state.pt"),
    "a loss of one rank": lambda: train(loss=lambda output, targets: output.detach().sum()),
    "a failing loss": lambda: train(loss=no_loss),
    "a trainer": lambda: pp.Trainer(LAYERS, pp.Plan("gpipe", 4, 1, 4, 2), **GIVEN | {"seed": "no"}),
    "a trainer's step": lambda: step(6),
    "a trainer's step on one rank": lambda: step(6 if RANK == "1" else 8),
    "a trainer's step without a block": step_without_a_block,
    "a trainer's failing loss": lambda: step(8, loss=no_loss),
    "a plan": lambda: pp.plan(LAYERS, (X, X), memory_limit=10),
    "another error": lambda: [train(), open("/absent")],
    "an interrupted loop": lambda: [pp.Trainer(LAYERS, PLAN, **GIVEN), os.kill(os.getpid(), signal.SIGINT)],
    "an interrupt": lambda: train(report=lambda report: os.kill(os.getpid(), signal.SIGINT), steps=10**6),
}

if __name__ == "__main__":
    PLACES[sys.argv[1]]()
