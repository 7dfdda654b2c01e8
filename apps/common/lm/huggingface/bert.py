"""Directories of BERT with its head for masked tokens as Hugging Face keeps them (`BertForMaskedLM`)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from apps.common.flags.paths import check_export
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
from apps.common.lm.huggingface.write import Tensors, named_tensors, write
from apps.common.lm.models.bert_presets import BertConfig, shapes
from pipelined.api.data.tokens.tokenizer import Tokenizer
from pipelined.errors import UsageError

if TYPE_CHECKING:
    import torch

BERT_TYPE = "bert"
SIZES = {
    "layers": "num_hidden_layers",
    "d_model": "hidden_size",
    "heads": "num_attention_heads",
    "hidden": "intermediate_size",
    "vocab": "vocab_size",
    "positions": "max_position_embeddings",
    "types": "type_vocab_size",
}
"""Hugging Face's key of each size."""
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
FIXED: Mapping[str, Any] = {"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False}
"""What is not computed here otherwise."""
TYPES: Mapping[str, Sequence[type]] = {
    **dict.fromkeys((*DROPOUTS, "layer_norm_eps", "initializer_range"), NUMBER),
    "tie_word_embeddings": (bool, NoneType),
}
"""The types of the values that a config.json may leave out."""
PARTS = (
    ("cls.predictions.decoder.", "decoder.word_embeddings."),
    ("cls.predictions.transform.", "transform."),
    ("cls.predictions.bias", "decoder.bias"),
    ("bert.embeddings.", "embeddings."),
    ("bert.encoder.layer.", "layer_"),
)
"""The beginnings of Hugging Face's names, and of ours."""
OWN_BIAS = "decoder.word_embeddings.bias"
"""What becomes of the bias that an untied head has beside `cls.predictions.bias`, and computes with instead."""


def read_bert(directory: str | Path) -> BertConfig:
    """Read the sizes of a BERT, and check that its tensors have them. Needs no torch.

    Raises:
        UsageError: it is another architecture or variant, or files are missing, broken or at odds.
    """
    config_json = read_json(Path(directory, "config.json"))
    check_config_json(config_json, "BERT", [BERT_TYPE], FIXED, directory)
    check_value_types(config_json, TYPES, directory)
    dropouts = {name: float(config_json.get(name, 0.1)) for name in DROPOUTS}
    if len(set(dropouts.values())) > 1:
        raise UsageError(f"the dropouts of config.json differ ({dropouts}); make them one number")
    config = BertConfig(
        **read_numbers(config_json, SIZES, directory),
        dropout=dropouts[DROPOUTS[0]],
        tied=config_json.get("tie_word_embeddings", True),
        epsilon=config_json.get("layer_norm_eps", 1e-12),
        deviation=config_json.get("initializer_range", 0.02),
    )
    check_shapes(_find_tensors(directory), shapes(config), directory)
    return config


def each_bert_tensor(directory: str | Path, names: Iterable[str]) -> "Iterator[tuple[str, torch.Tensor]]":
    """The tensors of these names of ours, one after another; raises as `read_tensors`."""
    yield from each_stored_tensor(directory, _find_tensors(directory), names)


def export_bert(directory: str | Path, tensors: "Tensors", config: BertConfig, tokenizer: Tokenizer | None) -> None:
    """Write a directory that `transformers.BertForMaskedLM` reads, as `write.export` does; by our names."""
    check_export(directory, BERT_TYPE)
    model_shapes = {_their_name(name): shape for name, shape in shapes(config).items()}
    if not config.tied:
        model_shapes[_their_name(OWN_BIAS)] = (config.vocab,)

    def rename_tensors() -> "Iterator[tuple[str, torch.Tensor]]":
        for name, tensor in named_tensors(tensors):
            yield _their_name(name), tensor
            if name == "decoder.bias" and not config.tied:
                yield _their_name(OWN_BIAS), tensor
            del tensor  # before the next one comes

    write(directory, rename_tensors(), model_shapes, lambda dtype: _describe(config, dtype), tokenizer)


def _describe(config: BertConfig, dtype: str) -> dict[str, Any]:
    """The content of config.json."""
    return {
        "architectures": ["BertForMaskedLM"],
        "model_type": BERT_TYPE,
        **{theirs: getattr(config, ours) for ours, theirs in SIZES.items()},
        **dict.fromkeys(DROPOUTS, config.dropout),
        **FIXED,
        "layer_norm_eps": config.epsilon,
        "initializer_range": config.deviation,
        "tie_word_embeddings": config.tied,
        "dtype": dtype,
    }


def _find_tensors(directory: str | Path) -> dict[str, StoredTensor]:
    tensors = find_tensors(directory, _our_name)
    own_bias = tensors.pop(OWN_BIAS, None)
    return tensors if own_bias is None else {**tensors, "decoder.bias": own_bias}


def _our_name(key: str) -> str:
    """`layer_3.output.dense.bias`, from `bert.encoder.layer.3.output.dense.bias`; older files say gamma and beta."""
    key = key.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    return next((ours + key.removeprefix(theirs) for theirs, ours in PARTS if key.startswith(theirs)), key)


def _their_name(name: str) -> str:
    return next(theirs + name.removeprefix(ours) for theirs, ours in PARTS if name.startswith(ours))
