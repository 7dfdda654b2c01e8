"""Directories of Llama-like models as Hugging Face keeps them: llama (SmolLM too), qwen2 and qwen3."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from apps.common.flags.paths import check_export
from apps.common.lm.huggingface.stored import (
    NUMBER,
    check_config_json,
    check_shapes,
    check_value_types,
    each_stored_tensor,
    find_tensors,
    read_json,
    read_numbers,
)
from apps.common.lm.huggingface.write import Tensors, named_tensors, write
from apps.common.lm.models.llama_presets import KINDS, LlamaConfig, shapes
from pipelined.api.data.tokens.tokenizer import Tokenizer
from pipelined.errors import UsageError

if TYPE_CHECKING:
    import torch

SIZES = {
    "layers": "num_hidden_layers",
    "d_model": "hidden_size",
    "heads": "num_attention_heads",
    "hidden": "intermediate_size",
    "vocab": "vocab_size",
    "positions": "max_position_embeddings",
}
"""Hugging Face's key of each size."""
FIXED: Mapping[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "use_sliding_window": False,
    "rope_scaling": None,
}
"""What is not computed here otherwise."""
TYPES: Mapping[str, Sequence[type]] = {
    **dict.fromkeys(("num_key_value_heads", "head_dim"), (int, NoneType)),
    **dict.fromkeys(("rms_norm_eps", "initializer_range", "rope_theta"), NUMBER),
    "rope_parameters": (dict, NoneType),
    "tie_word_embeddings": (bool, NoneType),
}
"""The types of the values that a config.json may leave out."""
CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def read_llama(directory: str | Path) -> LlamaConfig:
    """Read the sizes of a Llama-like model, and check that its tensors have them. Needs no torch.

    Raises:
        UsageError: it is another architecture or variant, or files are missing, broken or at odds.
    """
    config_json = read_json(Path(directory, "config.json"))
    check_config_json(config_json, "Llama", KINDS, FIXED, directory)
    check_value_types(config_json, TYPES, directory)
    rope = config_json.get("rope_parameters") or {"rope_theta": config_json.get("rope_theta", 10000.0)}
    check_value_types(rope, {"rope_theta": NUMBER}, directory)
    kind = rope.get("rope_type", "default")
    if kind != "default":
        raise UsageError(f"{directory} scales its positions (rope_type: {kind}, needed: default); give a plain Llama")
    numbers = read_numbers(config_json, SIZES, directory)
    config = LlamaConfig(
        **numbers,
        kv_heads=config_json.get("num_key_value_heads") or numbers["heads"],
        head_width=config_json.get("head_dim") or numbers["d_model"] // max(1, numbers["heads"]),
        theta=float(rope.get("rope_theta", 10000.0)),
        epsilon=config_json.get("rms_norm_eps", 1e-6),
        tied=config_json.get("tie_word_embeddings", False),
        kind=config_json["model_type"],
        deviation=config_json.get("initializer_range", 0.02),
    )
    check_shapes(find_tensors(directory, _our_name), shapes(config), directory)
    return config


def each_llama_tensor(directory: str | Path, names: Iterable[str]) -> "Iterator[tuple[str, torch.Tensor]]":
    """The tensors of these names of ours, one after another; raises as `read_tensors`."""
    yield from each_stored_tensor(directory, find_tensors(directory, _our_name), names)


def export_llama(directory: str | Path, tensors: "Tensors", config: LlamaConfig, tokenizer: Tokenizer | None) -> None:
    """Write a directory that the class of `transformers` of this kind reads, as `write.export` does; by our names."""
    check_export(directory, config.kind)
    model_shapes = {_their_name(name): shape for name, shape in shapes(config).items()}
    pairs = map(_rename_tensor, named_tensors(tensors))
    write(directory, pairs, model_shapes, lambda dtype: _describe(config, dtype, tokenizer), tokenizer)


def _rename_tensor(pair: "tuple[str, torch.Tensor]") -> "tuple[str, torch.Tensor]":
    return _their_name(pair[0]), pair[1]


def _describe(config: LlamaConfig, dtype: str, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The content of config.json; `rope_theta` is also where releases of `transformers` before 5 look for it."""
    end = tokenizer.end_of_text if tokenizer else None
    return {
        "architectures": [CLASSES[config.kind]],
        "model_type": config.kind,
        **{theirs: getattr(config, ours) for ours, theirs in SIZES.items()},
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.width,
        "hidden_act": "silu",
        "rms_norm_eps": config.epsilon,
        "rope_theta": config.theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.theta},
        "tie_word_embeddings": config.tied,
        "initializer_range": config.deviation,
        "bos_token_id": end,
        "eos_token_id": end,
        "dtype": dtype,
    }


def _our_name(key: str) -> str:
    """`layers_3.mlp.up_proj.weight`, from `model.layers.3.mlp.up_proj.weight`."""
    return key.removeprefix("model.").replace("layers.", "layers_", 1)


def _their_name(name: str) -> str:
    return name if name.startswith("lm_head.") else "model." + name.replace("layers_", "layers.", 1)
