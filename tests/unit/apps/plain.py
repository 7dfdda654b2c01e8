"""The optimizer of the programs of rows of layers, and their training, as a plain loop of torch has them."""

import torch
from torch import nn

from apps.common.lm.data.batches import Batches
from apps.common.lm.data.text import read_text
from tests.launching import ROOT


class PlainOptimizer:
    """AdamW with the default flags: matrices decay, vectors do not, the rate rises for 30 steps, norms up to 1."""

    def __init__(self, module):
        self._parameters = list(module.parameters())
        matrices, vectors = ([p for p in self._parameters if (p.dim() > 1) == which] for which in (True, False))
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        self._inner, self._steps = torch.optim.AdamW(groups), 0

    def step(self):
        """Update by the gradients, and clear them."""
        self._steps += 1
        for group in self._inner.param_groups:
            group["lr"] = 2e-3 * self._steps / 30
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._inner.step()
        self._inner.zero_grad()


def losses_of_language(module, steps, sequence, rows):
    """Train on the sequences that the programs draw of the licence, one microbatch a step; returns the losses."""
    optimizer, losses = PlainOptimizer(module), []
    batches = Batches(read_text([ROOT / "LICENSE"], "bytes").train, sequence, rows, 1, 0)
    for step in range(steps):
        inputs, targets = map(torch.from_numpy, batches.rows(step, 0))
        loss = nn.functional.cross_entropy(module(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
