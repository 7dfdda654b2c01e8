"""A trained model, whole: put together from stages by parameter name, written out, and sampled from.

The one rule: bits are as they were trained; what is written or computed with here is never rounded. This file must not
know where the stages came from.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from apps.common.paths import GPT2_TYPE, ROTARY_TYPE, check_export
from apps.lm.data.tokenizer import Tokenizer
from apps.lm.huggingface.write import export, export_rotary
from apps.lm.models.gpt2 import GPT2
from apps.lm.models.rotary_presets import RotaryConfig
from apps.lm.sampling import Picker, sample
from transports import Block

VALUE = "/value"
"""What the name of a parameter's own tensor ends with, in a stage's state."""


@dataclass(frozen=True)
class Weights:
    """A model and its parameters.

    Args:
        tensors: every parameter, by name.
    """

    model: GPT2
    tensors: Mapping[str, torch.Tensor]

    @classmethod
    def of_stages(cls, model: GPT2, states: Iterable[Mapping[str, Any]]) -> "Weights":
        """Of every stage's state, or of so much of it as are values."""
        values = {key: value for state in states for key, value in state.items() if key.endswith(VALUE)}
        return cls(model, {key.removesuffix(VALUE): Block.of(value).torch() for key, value in values.items()})

    def export(self, directory: Path, tokenizer: Tokenizer) -> None:
        """Write a directory as Hugging Face keeps models.

        Raises:
            UsageError: something else lies there.
        """
        config = self.model.config
        (export_rotary if isinstance(config, RotaryConfig) else export)(directory, self.tensors, config, tokenizer)

    @torch.no_grad()
    def sample(self, tokenizer: Tokenizer, prompt: str, count: int, context: int, seed: int) -> str:
        """Continue a prompt; a seed gives the same text on every machine that computes the same logits.

        Args:
            count: tokens to add.
            context: tokens that are looked back on.
        """
        dtype = next(iter(self.tensors.values())).dtype
        whole = self.model.build(range(self.model.layers), dtype, "cpu", None)
        for name, parameter in whole.named_parameters():
            parameter.copy_(self.tensors[name])
        return tokenizer.decode(sample(whole, tokenizer.encode(prompt).tolist(), count, context, Picker(seed)))


def check_destination(flag: str, directory: Path, model: GPT2) -> None:
    """Refuse a directory that holds something else, before anything is fetched for it.

    Raises:
        UsageError: it does.
    """
    check_export(directory, ROTARY_TYPE if isinstance(model.config, RotaryConfig) else GPT2_TYPE, flag)
