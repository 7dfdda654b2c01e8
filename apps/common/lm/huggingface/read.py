"""GPT-2 directories as Hugging Face keeps them: config.json, safetensors in one file or many, and a tokenizer.

This module reads them; `write` beside it writes them. The headers are checked before a tensor is loaded, and torch is
imported only where tensors move.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from apps.common.flags.paths import GPT2_TYPE
from apps.common.lm.huggingface.stored import (
    NUMBER,
    StoredTensor,
    check_config_json,
    check_shapes,
    check_value_types,
    each_stored_tensor,
    find_tensors,
    read_json,
    read_numbers,
)
from apps.common.lm.models.gpt2_presets import ModelConfig, shapes
from pipelined.errors import UsageError

if TYPE_CHECKING:
    import torch

EMBEDDING, HEAD = "transformer.wte.weight", "lm_head.weight"

FIXED: Mapping[str, Any] = {
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}
"""What GPT-2 as published leaves no choice about, and what Hugging Face takes where a config.json is silent."""
DROPOUTS = ("embd_pdrop", "attn_pdrop", "resid_pdrop")
TYPES: Mapping[str, Sequence[type]] = {
    **dict.fromkeys((*DROPOUTS, "initializer_range"), NUMBER),
    **dict.fromkeys(("n_embd", "n_inner"), (int, NoneType)),
    "tie_word_embeddings": (bool, NoneType),
}
"""The types of the values that a config.json may leave out, and of those of which another is computed."""


def read_sizes(directory: str | Path) -> ModelConfig:
    """Read the sizes of a GPT-2, and check that its tensors have them. Needs no torch unless there is an own head.

    Raises:
        UsageError: it is another architecture, or files are missing, broken or at odds.
    """
    config_json = read_json(Path(directory, "config.json"))
    check_config_json(config_json, "GPT-2", [GPT2_TYPE], FIXED, directory)
    check_value_types(config_json, TYPES, directory)
    wide = 4 * (config_json.get("n_embd") or 0)
    inner = config_json.get("n_inner") or wide
    check_config_json({**config_json, "n_inner": inner}, "GPT-2", [GPT2_TYPE], {"n_inner": wide}, directory)
    sizes = {
        "layers": "n_layer",
        "d_model": "n_embd",
        "heads": "n_head",
        "vocab": "vocab_size",
        "positions": "n_positions",
    }
    numbers = read_numbers(config_json, sizes, directory)
    stored_tensors = find_tensors(directory, _full_name)
    tied = config_json.get("tie_word_embeddings", True) and not _has_own_head(stored_tensors)
    deviation = config_json.get("initializer_range", 0.02)
    config = ModelConfig(**numbers, dropout=_dropout(config_json), tied=tied, deviation=deviation)
    check_shapes(stored_tensors, shapes(config), directory)
    return config


def read_tensors(directory: str | Path, names: Iterable[str]) -> "dict[str, torch.Tensor]":
    """Read the tensors of these names, and nothing else, in the dtype they are stored in.

    Raises:
        UsageError: one is missing, or a file is broken.
    """
    return dict(each_tensor(directory, names))


def each_tensor(directory: str | Path, names: Iterable[str]) -> "Iterator[tuple[str, torch.Tensor]]":
    """As `read_tensors`, one tensor after another, so that they need not fit into memory together."""
    yield from each_stored_tensor(directory, find_tensors(directory, _full_name), names)


def _full_name(key: str) -> str:
    return key if key.startswith(("transformer.", "lm_head.")) else f"transformer.{key}"


def _has_own_head(stored_tensors: Mapping[str, StoredTensor]) -> bool:
    """Whether there is a head and it differs from the embedding (as transformers 5 decides)."""
    if HEAD not in stored_tensors or EMBEDDING not in stored_tensors:
        return HEAD in stored_tensors
    return not stored_tensors[HEAD].read().equal(stored_tensors[EMBEDDING].read())


def _dropout(config_json: Mapping[str, Any]) -> float:
    """The one dropout of the three places."""
    dropouts = {name: config_json.get(name, 0.1) for name in DROPOUTS}
    if len(set(dropouts.values())) > 1:
        raise UsageError(f"the dropouts of config.json differ ({dropouts}); make them one number")
    return float(dropouts["resid_pdrop"])
