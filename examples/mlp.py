"""A model of one's own: `mpirun -n 4 python examples/mlp.py`, or torchrun, srun, or plain python."""

import torch
from torch import nn

import pipelined as pp

hidden: list[pp.LayerBuilder] = [lambda: nn.Linear(64, 64), nn.ReLU]
layers: list[pp.LayerBuilder] = [lambda: nn.Linear(32, 64), nn.ReLU, *hidden * 6, lambda: nn.Linear(64, 10)]
torch.manual_seed(1)  # the same batches on every rank
teacher = torch.randn(32, 10)
batches = [(x, (x @ teacher).argmax(1)) for x in torch.randn(100, 64, 32)]
done = pp.train(
    pp.Sequential(layers),
    batches,
    loss=nn.functional.cross_entropy,
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
    schedule="chimera",
    depth=4,
    microbatches=8,
    report=lambda step: step.step % 10 == 9 and print(f"step {step.step + 1}: loss {step.loss:.4f}"),
)
if state := done.state_dict():  # on rank 0
    nn.Sequential(*[build() for build in layers]).load_state_dict(state)
    print(f"loss {done.losses[0]:.4f} at first, {done.losses[-1]:.4f} at last; the state loads into plain torch")
