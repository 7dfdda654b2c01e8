"""Writing SWARM's Transformer as Hugging Face keeps models; see docs/swarm-model.md.

The one rule: config.json says all that is needed to compute with the tensors, whatever stages they were trained in. No
class of `transformers` computes this model, so its `model_type` is our own. This file must not know of swarms.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.common.paths import ROTARY_TYPE, check_export
from apps.lm.data.tokenizer import Tokenizer
from apps.lm.huggingface.write import write
from apps.lm.models.gpt2_presets import Shapes
from apps.lm.models.rotary_presets import BASE, RotaryConfig, layer_shapes

if TYPE_CHECKING:
    import torch

OF_TRAINING = {"dropout", "deviation"}
"""Fields of a model's sizes that say how it was trained, and nothing of what it computes."""


def export_rotary(
    directory: str | Path, tensors: "Mapping[str, torch.Tensor]", config: RotaryConfig, tokenizer: Tokenizer | None
) -> None:
    """Write config.json, the tensors as safetensors, and the tokenizer.

    Args:
        tensors: every parameter once, by name.
    Raises:
        UsageError: as `check_export`.
        ValueError: the tensors are not exactly the model's. In either case what was there is as it was.
    """
    check_export(directory, ROTARY_TYPE)
    wanted: Shapes = {name: shape for layer in layer_shapes(config) for name, shape in layer.items()}
    write(directory, tensors, wanted, lambda dtype: describe(config, dtype, tokenizer), tokenizer)


def describe(config: RotaryConfig, dtype: str, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """What config.json says.

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
