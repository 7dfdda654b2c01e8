"""Look before you train: prove schedules, plan the model of mlp.py, and draw it (`python examples/laboratory.py`)."""

import torch
from torch import nn

import pipelined as pp

hidden: list[pp.LayerBuilder] = [lambda: nn.Linear(64, 64), nn.ReLU]
layers: list[pp.LayerBuilder] = [lambda: nn.Linear(32, 64), nn.ReLU, *hidden * 6, lambda: nn.Linear(64, 10)]
batch = torch.randn(64, 32), torch.randint(10, (64,))

for schedule in ("gpipe", "one_f_one_b", "zb_h1", "chimera"):
    proof = pp.prove(schedule, depth=4, microbatches=8)
    print(f"{schedule:12} {proof.makespan:g} s, {proof.bubble_ratio:.0%} idle, alive {proof.peak_activations}")

# at a stated speed; leave `costs` out to measure this machine, and start it by mpirun to measure the links, too
planned = pp.plan(layers, batch, loss=nn.functional.cross_entropy, ranks=4, costs={"flops": 1e9})
print(planned)
planned.picture().save("plan.svg")
