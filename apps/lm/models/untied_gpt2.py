"""GPT-2 with its tie cut, for stages that share no parameter: the head has a matrix of its own, and begins as the
embedding's.

The rule: before the first step it computes what the tied model does, to the bit; from then on the two matrices learn
apart. This file must not know of stages.
"""

import torch
from torch import nn

from apps.lm.models.gpt2 import GPT2, initialise

EMBEDDING, HEAD = "transformer.wte.weight", "lm_head.weight"


class UntiedGPT2(GPT2):
    """A GPT-2 whose sizes say that it is untied, though as published it is not."""

    def build(self, layers: range, dtype: torch.dtype, device: torch.device | str, seed: int | None) -> nn.Module:
        """Build a range of layers; see `Model` in `pipelined.training.model`.

        The head is drawn under the embedding's name.
        """
        part = super().build(layers, dtype, device, seed)
        head = dict(part.named_parameters()).get(HEAD)
        if head is not None and seed is not None and head.device.type != "meta":
            initialise(head, EMBEDDING, seed, self.config)
        return part
