"""A whole trained model: assembled from stages by parameter name, exported, and sampled from.

Parameters are never rounded: their bits are those of the training.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from apps.common.flags.paths import GPT2_TYPE, ROTARY_TYPE, check_export
from apps.common.lm.huggingface.rotary import export_rotary
from apps.common.lm.huggingface.write import export
from apps.common.lm.models.gpt2 import GPT2
from apps.common.lm.models.rotary_presets import RotaryConfig
from apps.common.lm.sampling import Picker, sample
from pipelined.api.data.tokens.tokenizer import Tokenizer
from pipelined.training.digests import parameters_digest
from transports import Block

VALUE = "/value"
"""The end of the name of a parameter's tensor in a stage's state."""


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
        """Assemble a model from the states of all stages; only their values are used."""
        values = {key: value for state in states for key, value in state.items() if key.endswith(VALUE)}
        return cls(model, {key.removesuffix(VALUE): Block.of(value).torch() for key, value in values.items()})

    def digest(self) -> str:
        """The digest of all parameters that a pipeline with the same values prints with `--digest`.

        Cost: one hash of every byte.
        """
        model = self.model.build(range(self.model.layers), torch.float32, "meta", None)
        return parameters_digest((name, self.tensors[name]) for name, _ in model.named_parameters())

    def export(self, directory: Path, tokenizer: Tokenizer) -> None:
        """Write a directory in Hugging Face's format.

        Raises:
            UsageError: the directory holds something else.
        """
        config = self.model.config
        if isinstance(config, RotaryConfig):
            export_rotary(directory, self.tensors, config, tokenizer)
        else:
            export(directory, self.tensors, config, tokenizer)

    @torch.no_grad()
    def sample(self, tokenizer: Tokenizer, prompt: str, count: int, context: int, seed: int) -> str:
        """Continue a prompt; a seed gives the same text on every machine that computes the same logits.

        Args:
            count: tokens to add.
            context: tokens that the model sees for each new one.
        """
        dtype = next(iter(self.tensors.values())).dtype
        model = self.model.build(range(self.model.layers), dtype, "cpu", None)
        for name, parameter in model.named_parameters():
            parameter.copy_(self.tensors[name])
        return tokenizer.decode(sample(model, tokenizer.encode(prompt).tolist(), count, context, Picker(seed)))


def check_destination(flag: str, directory: Path, model: GPT2) -> None:
    """Refuse a directory that holds something else, before the model is fetched.

    Raises:
        UsageError: it holds something else.
    """
    check_export(directory, ROTARY_TYPE if isinstance(model.config, RotaryConfig) else GPT2_TYPE, flag)
