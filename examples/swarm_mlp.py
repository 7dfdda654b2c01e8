"""Train an MLP in a swarm. Here: python examples/swarm_mlp.py. On several machines: python -m pipelined directory, then
python examples/swarm_mlp.py serve tcp://HOST:PORT on each, and once: python examples/swarm_mlp.py train tcp://HOST:PORT
"""

import sys

import torch
from torch import nn

import pipelined as pp

torch.manual_seed(0)  # every process begins with the same values
inputs = torch.randn(64, 64)
batches = [(inputs, inputs.argmax(1) % 10)]
mlp = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
loss, adam = nn.functional.cross_entropy, lambda parameters: torch.optim.AdamW(parameters, lr=1e-2)
role, coordinator = sys.argv[1:] or ("local", "")
if role == "serve":
    pp.swarm.serve(mlp, loss=loss, optimizer=adam, coordinator=coordinator)
    sys.exit()
if role == "train":
    done = pp.swarm.train(mlp, batches, loss=loss, optimizer=adam, coordinator=coordinator, depth=2, steps=100)
else:
    done = pp.swarm.local(mlp, batches, loss=loss, optimizer=adam, depth=2, peers=4, steps=10)
print(f"loss {done.losses[0]:.4f} at first, {done.losses[-1]:.4f} at step {done.steps}")
