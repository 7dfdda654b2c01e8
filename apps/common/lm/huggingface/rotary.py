"""SWARM's Transformer as a directory like Hugging Face's: config.json, safetensors, and a tokenizer.

No class of `transformers` computes it, so its `model_type` is our own (docs/swarm-model.md), and its config.json says
all that is needed to compute with the tensors, however they were cut into stages.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.common.flags.paths import ROTARY_TYPE, check_export
from apps.common.lm.huggingface.stored import (
    check_config_json,
    check_shapes,
    check_value_types,
    each_stored_tensor,
    find_tensors,
    read_json,
    read_numbers,
)
from apps.common.lm.huggingface.write import Tensors, named_tensors, write
from apps.common.lm.models.rotary_presets import BASE, RotaryConfig, shapes
from pipelined.api.data.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

TRAINING_FIELDS = {"dropout", "deviation"}
"""Fields of a rotary model's sizes that its config.json leaves out: they say how it was trained."""
FIXED: Mapping[str, Any] = {"rope_theta": BASE, "layer_norm_epsilon": 1e-5}
"""What is not computed here otherwise."""
SIZES = ("layers", "d_model", "heads", "vocab", "positions", "shared", "factor")


def read_rotary(directory: str | Path) -> RotaryConfig:
    """Read the sizes of an export, and check that its tensors have them. Needs no torch.

    Raises:
        UsageError: it is another architecture, or files are missing, broken or at odds.
    """
    config_json = read_json(Path(directory, "config.json"))
    check_config_json(config_json, "SWARM's model", [ROTARY_TYPE], FIXED, directory)
    check_value_types(config_json, {"squeeze": (str,), "narrow": (list,)}, directory)
    numbers = read_numbers(config_json, {name: name for name in SIZES}, directory)
    squeeze = config_json.get("squeeze", "none")
    narrow = tuple(config_json.get("narrow", ()))
    config = RotaryConfig(**numbers, dropout=0.0, tied=False, squeeze=squeeze, narrow=narrow)
    check_shapes(find_tensors(directory), shapes(config), directory)
    return config


def each_rotary_tensor(directory: str | Path, names: Iterable[str]) -> "Iterator[tuple[str, torch.Tensor]]":
    """The tensors of these names, or of their names in a row of layers, one after another.

    Raises:
        UsageError: one is missing, or a file is broken.
    """
    our_names = {_their_name(name): name for name in names}
    for key, tensor in each_stored_tensor(directory, find_tensors(directory), our_names):
        yield our_names[key], tensor
        del tensor  # before the next one is read


def export_rotary(directory: str | Path, tensors: Tensors, config: RotaryConfig, tokenizer: Tokenizer | None) -> None:
    """Write SWARM's Transformer, as `write.export` does; by names, or names in a row of layers."""
    check_export(directory, ROTARY_TYPE)
    pairs = map(lambda pair: (_their_name(pair[0]), pair[1]), named_tensors(tensors))  # keeps no tensor
    write(directory, pairs, shapes(config), lambda dtype: describe_rotary(config, dtype, tokenizer), tokenizer)


def describe_rotary(config: RotaryConfig, dtype: str, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The content of a rotary model's config.json.

    Args:
        dtype: of the tensors.
    """
    end = tokenizer.end_of_text if tokenizer else None
    return {
        "architectures": ["RotaryLM"],
        "model_type": ROTARY_TYPE,
        **{name: value for name, value in asdict(config).items() if name not in TRAINING_FIELDS},
        **FIXED,
        "bos_token_id": end,
        "eos_token_id": end,
        "dtype": dtype,
    }


def _their_name(name: str) -> str:
    """`transformer.wte.weight`, in a row of layers `embedding.transformer.wte.weight`."""
    return name if name.startswith(("transformer.", "lm_head.")) else name.partition(".")[2]
