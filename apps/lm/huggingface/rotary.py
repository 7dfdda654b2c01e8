"""SWARM's Transformer as a directory like Hugging Face's: config.json, safetensors, and a tokenizer.

No class of `transformers` computes it, so its `model_type` is our own (docs/swarm-model.md), and its config.json says
all that is needed to compute with the tensors, however they were cut into stages.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from apps.common.paths import ROTARY_TYPE, check_export
from apps.lm.huggingface.write import Tensors, write
from apps.lm.models.gpt2_presets import Shapes
from apps.lm.models.rotary_presets import BASE, RotaryConfig, layer_shapes
from pipelined.api.data.tokens.tokenizer import Tokenizer

OF_TRAINING = {"dropout", "deviation"}
"""Fields of a rotary model's sizes that its config.json leaves out: they say how it was trained."""


def export_rotary(directory: str | Path, tensors: Tensors, config: RotaryConfig, tokenizer: Tokenizer | None) -> None:
    """Write SWARM's Transformer: config.json, the tensors as safetensors, and the tokenizer.

    Args:
        tensors: every parameter once, by name.
    Raises:
        UsageError: as `check_export`.
        ValueError: the tensors are not exactly the model's. In either case what was there is as it was.
    """
    check_export(directory, ROTARY_TYPE)
    wanted: Shapes = {name: shape for layer in layer_shapes(config) for name, shape in layer.items()}
    write(directory, tensors, wanted, lambda dtype: describe_rotary(config, dtype, tokenizer), tokenizer)


def describe_rotary(config: RotaryConfig, dtype: str, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The content of a rotary model's config.json.

    Args:
        dtype: of the tensors.
    """
    end = tokenizer.end_of_text if tokenizer else None
    return {
        "architectures": ["RotaryLM"],
        "model_type": ROTARY_TYPE,
        **{name: value for name, value in asdict(config).items() if name not in OF_TRAINING},
        "rope_theta": BASE,
        "layer_norm_epsilon": 1e-5,
        "bos_token_id": end,
        "eos_token_id": end,
        "dtype": dtype,
    }
