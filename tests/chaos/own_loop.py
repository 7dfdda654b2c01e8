"""A user's loop on two ranks, with a `FAULT`: one rank raises, ends early, or saves without the other."""

import os
import sys

import torch
from torch import nn

import pipelined as pp

FAULT, RANK = sys.argv[1], int(os.environ["PMI_RANK"])
X = torch.ones(8, 4)

trainer = pp.Trainer(
    [lambda: nn.Linear(4, 4)] * 2,
    pp.Plan("gpipe", 2, 1, 4, 2),
    loss=nn.functional.mse_loss,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
)
for step in range(2 if FAULT == "early" and RANK else 3):
    if FAULT == "raise" and RANK and step:
        raise ValueError("no more data")
    trainer.step((X, X))
    if FAULT == "save" and not RANK:
        trainer.save("nowhere")
