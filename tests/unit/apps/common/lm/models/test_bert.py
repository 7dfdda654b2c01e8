"""BERT against its formulas, written out in float64 head by head; and the published numbers of parameters."""

import math

import pytest
import torch
from torch import nn

from apps.common.lm.models.bert import builders
from apps.common.lm.models.bert_presets import BERT_PRESETS, BertConfig, shapes
from pipelined.errors import UsageError

SIZES = {"layers": 2, "d_model": 12, "heads": 3, "hidden": 20, "vocab": 17, "positions": 9, "deviation": 0.5}
VARIANTS = [BertConfig(**SIZES), BertConfig(**SIZES, tied=False, epsilon=1e-3)]


def built(config):
    """The layers as plain torch in float64; a tied head has the embedding's matrix."""
    torch.manual_seed(0)
    row = nn.Sequential()
    for name, build in builders(config).items():
        row.add_module(name, build().double())
    for name, parameter in row.named_parameters():
        if "LayerNorm" in name or name.endswith("bias"):
            parameter.data.uniform_(-1.0, 1.0)
    if config.tied:
        row.decoder.word_embeddings.weight = row.embeddings.word_embeddings.weight
    return row


def affine(x, p, name):
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def normed(x, p, name, config):
    centred = x - x.mean(1, keepdim=True)
    scaled = centred / (centred.square().mean(1, keepdim=True) + config.epsilon).sqrt()
    return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]


def gelu(x):
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def attended(x, p, config):
    """Attention (T, C), one head after another; every token sees all."""
    q, k, v = (affine(x, p, f"attention.self.{name}") for name in ("query", "key", "value"))
    width = config.d_model // config.heads
    heads = [slice(number * width, (number + 1) * width) for number in range(config.heads)]
    return torch.cat([(q[:, h] @ k[:, h].T / math.sqrt(width)).softmax(1) @ v[:, h] for h in heads], 1)


def by_formula(ids, parameters, config):
    """Logits (T, V) of one sequence."""
    p = {n.removeprefix("embeddings."): value for n, value in parameters.items()}
    x = p["word_embeddings.weight"][ids] + p["position_embeddings.weight"][: len(ids)]
    x = normed(x + p["token_type_embeddings.weight"][0], p, "LayerNorm", config)
    for number in range(config.layers):
        p = {n.partition(".")[2]: v for n, v in parameters.items() if n.startswith(f"layer_{number}.")}
        y = affine(attended(x, p, config), p, "attention.output.dense")
        x = normed(x + y, p, "attention.output.LayerNorm", config)
        y = affine(gelu(affine(x, p, "intermediate.dense")), p, "output.dense")
        x = normed(x + y, p, "output.LayerNorm", config)
    x = normed(gelu(affine(x, parameters, "transform.dense")), parameters, "transform.LayerNorm", config)
    return x @ parameters["decoder.word_embeddings.weight"].T + parameters["decoder.bias"]


@pytest.mark.parametrize("config", VARIANTS, ids=["tied", "untied"])
def test_logits_are_those_of_the_formulas(config):
    row, ids = built(config).eval(), torch.arange(14).view(2, 7) * 5 % 17
    parameters = row.state_dict()
    wanted = torch.stack([by_formula(each, parameters, config) for each in ids])
    assert (row(ids) - wanted).abs().max() < 1e-12


@pytest.mark.parametrize("config", VARIANTS, ids=["tied", "untied"])
def test_the_closed_form_has_every_parameter(config):
    assert {name: tuple(each.shape) for name, each in built(config).named_parameters()} == shapes(config)


def test_presets_have_the_published_numbers_of_parameters():
    """With the pooler and the head for the next sentence, Bert-48 has those of Chimera's Table 4."""
    assert BERT_PRESETS["bert-base"].parameters == 109_514_298
    assert BERT_PRESETS["bert-large"].parameters == 335_174_458
    pooler, next_sentence = 1024 * 1025, 2 * 1025
    assert BERT_PRESETS["chimera"].parameters + pooler + next_sentence == 669_790_012


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"heads": 5}, r"\(d_model: 12, heads: 5\)"),
        ({"dropout": 1.0}, "dropout must lie"),
        ({"types": 0}, "types must"),
    ],
)
def test_impossible_sizes_are_refused(given, message):
    with pytest.raises(UsageError, match=message):
        BertConfig(**{**SIZES, **given})
