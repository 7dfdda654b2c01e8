"""Directories of BERT: what `transformers` writes is read, and it reads what is written."""

import json

import pytest
import torch
from torch import nn

from apps.common.lm.huggingface.bert import each_bert_tensor, export_bert, read_bert
from apps.common.lm.models.bert import builders
from apps.common.lm.models.bert_presets import shapes
from pipelined.errors import UsageError

SIZES = {
    "vocab_size": 31,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "initializer_range": 0.3,
}
IDS = torch.arange(40).view(2, 20) * 7 % 31


def loaded(directory):
    """The layers of a directory, as plain torch."""
    config = read_bert(directory)
    row = nn.Sequential()
    for name, build in builders(config).items():
        row.add_module(name, build())
    if config.tied:
        row.decoder.word_embeddings.weight = row.embeddings.word_embeddings.weight
    row.load_state_dict(dict(each_bert_tensor(directory, shapes(config))), strict=not config.tied)
    return row.eval()


def logits(model):
    with torch.no_grad():
        return model.eval()(IDS).logits


@pytest.mark.parametrize("tied", [True, False])
def test_both_ways_the_logits_are_equal(tied, tmp_path):
    import transformers  # not at collection: it takes longer than torch

    torch.manual_seed(1)
    model = transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, tie_word_embeddings=tied))
    nn.init.normal_(model.cls.predictions.bias)
    nn.init.normal_(model.cls.predictions.decoder.bias)
    model.save_pretrained(tmp_path / "theirs")
    row, config = loaded(tmp_path / "theirs"), read_bert(tmp_path / "theirs")
    assert config.tied == tied and (row(IDS) - logits(model)).abs().max() < 1e-5
    export_bert(tmp_path / "ours", dict(row.named_parameters()), config, None)
    assert logits(transformers.BertForMaskedLM.from_pretrained(tmp_path / "ours")).equal(logits(model))
    assert read_bert(tmp_path / "ours") == config


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model_type", "gpt2", r"another architecture \(model_type: gpt2, needed: bert\)"),
        ("hidden_act", "relu", "not BERT as published"),
        ("hidden_dropout_prob", 0.5, "the dropouts of config.json differ"),
        ("hidden_dropout_prob", None, r"another type \(hidden_dropout_prob: None\)"),
        ("layer_norm_eps", "1e-12", r"another type \(layer_norm_eps: '1e-12'\)"),
        ("hidden_size", 32, "at odds with its config.json"),
    ],
)
def test_another_model_is_refused(key, value, message, tmp_path):
    import transformers  # not at collection: it takes longer than torch

    transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)).save_pretrained(tmp_path)
    about = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**about, key: value}))
    with pytest.raises(UsageError, match=message):
        read_bert(tmp_path)
