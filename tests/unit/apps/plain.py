"""The optimizer of the programs of rows of layers, as a plain loop of torch has it."""

import torch
from torch import nn


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
