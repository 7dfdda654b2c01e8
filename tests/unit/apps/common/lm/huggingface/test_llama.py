"""Directories of Llama, Qwen2 and Qwen3: what `transformers` writes is read, and it reads what is written."""

import json

import pytest
import torch
from torch import nn

from apps.common.lm.huggingface.llama import each_llama_tensor, export_llama, read_llama
from apps.common.lm.models.llama import builders
from apps.common.lm.models.llama_presets import shapes
from pipelined.errors import UsageError

SIZES = {
    "vocab_size": 31,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
ROPE = {"rope_type": "default", "rope_theta": 1000.0}
MODELS = {
    "llama": lambda hf: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES, rope_parameters=ROPE)),
    "llama, tied": lambda hf: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "qwen2": lambda hf: hf.Qwen2ForCausalLM(hf.Qwen2Config(**SIZES, tie_word_embeddings=True)),
    "qwen3": lambda hf: hf.Qwen3ForCausalLM(hf.Qwen3Config(**SIZES, head_dim=8, rope_parameters=ROPE)),
}
IDS = torch.arange(40).view(2, 20) * 7 % 31


def loaded(directory):
    """The layers of a directory, as plain torch."""
    config = read_llama(directory)
    row = nn.Sequential()
    for name, build in builders(config).items():
        row.add_module(name, build())
    if config.tied:
        row.lm_head.weight = row.embed_tokens.weight
    row.load_state_dict(dict(each_llama_tensor(directory, shapes(config))), strict=not config.tied)
    return row


def logits(model, ids=IDS):
    with torch.no_grad():
        return model.eval()(ids).logits


@pytest.mark.parametrize("name", MODELS)
def test_both_ways_the_logits_are_equal(name, tmp_path):
    import transformers  # not at collection: it takes longer than torch

    torch.manual_seed(1)
    model = MODELS[name](transformers)
    model.save_pretrained(tmp_path / "theirs")
    row, config = loaded(tmp_path / "theirs"), read_llama(tmp_path / "theirs")
    assert (row(IDS) - logits(model)).abs().max() < 1e-5
    export_llama(tmp_path / "ours", dict(row.named_parameters()), config, None)
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert type(back) is type(model) and logits(back).equal(logits(model))
    assert read_llama(tmp_path / "ours") == config


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model_type", "gpt2", r"another architecture \(model_type: gpt2, needed: llama or qwen2 or qwen3\)"),
        ("attention_bias", True, "not Llama as published"),
        ("rope_parameters", {"rope_type": "llama3", "rope_theta": 5e5}, r"scales its positions \(rope_type: llama3"),
        ("hidden_size", 32, "at odds with its config.json"),
        ("vocab_size", None, "lacks vocab_size"),
        ("rope_parameters", [1], r"another type \(rope_parameters: \[1\]\)"),
        ("rope_parameters", {"rope_theta": None}, r"another type \(rope_theta: None\)"),
        ("num_key_value_heads", "2", r"another type \(num_key_value_heads: '2'\)"),
        ("rms_norm_eps", "1e-5", r"another type \(rms_norm_eps: '1e-5'\)"),
    ],
)
def test_another_model_is_refused(key, value, message, tmp_path):
    import transformers  # not at collection: it takes longer than torch

    MODELS["llama"](transformers).save_pretrained(tmp_path)
    about = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**about, key: value}))
    with pytest.raises(UsageError, match=message):
        read_llama(tmp_path)
