"""A ResNet with batch norms and skips, cut where its modules begin: `mpirun -n 4 python examples/resnet.py`."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import pipelined as pp


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.1))

    def forward(self, x):
        return nn.functional.relu(x + self.inner(x))


torch.manual_seed(0)  # every rank builds the same model and the same batches
model = nn.Sequential(nn.Conv2d(3, 16, 3), *[Block() for _ in range(4)], nn.Flatten(), nn.Linear(16 * 6 * 6, 10))
batches = [(torch.randn(64, 3, 8, 8), torch.randint(10, (64,)))] * 10
done = pp.train(pp.trace(model, batches[0][0]), batches, loss=cross_entropy, optimizer=torch.optim.AdamW, depth=4)
if state := done.state_dict():  # on rank 0
    model.load_state_dict(state)
    print(f"loss {done.losses[0]:.4f} at first, {done.losses[-1]:.4f} at last; the state loads into the ResNet")
