"""Llama against its formulas, written out in float64 head by head; and the published numbers of parameters."""

import math

import pytest
import torch
from torch import nn

from apps.common.lm.models.llama import builders
from apps.common.lm.models.llama_presets import LLAMA_PRESETS, LlamaConfig, shapes
from pipelined.errors import UsageError

SIZES = {"layers": 2, "d_model": 16, "heads": 4, "kv_heads": 2, "hidden": 20, "vocab": 17, "deviation": 0.5}
VARIANTS = [
    LlamaConfig(**SIZES),
    LlamaConfig(**SIZES, tied=True, kind="qwen2"),
    LlamaConfig(**SIZES, head_width=8, theta=500.0, kind="qwen3"),
]


def built(config, dtype=torch.float64):
    """The layers as plain torch; a tied head has the embedding's matrix."""
    torch.manual_seed(0)
    row = nn.Sequential()
    for name, build in builders(config).items():
        row.add_module(name, build().to(dtype))
    for name, parameter in row.named_parameters():
        if "norm" in name or name.endswith("bias"):
            parameter.data.uniform_(0.5, 1.5)
    if config.tied:
        row.lm_head.weight = row.embed_tokens.weight
    return row


def normed(x, weight, config):
    return x / (x.square().mean(-1, keepdim=True) + config.epsilon).sqrt() * weight


def head(x, weight, bias, number, config):
    """One head of a projection (T, D)."""
    rows = slice(number * config.width, (number + 1) * config.width)
    return x @ weight[rows].T + (0 if bias is None else bias[rows])


def rotated(x, config):
    """Feature i is the real part of a complex number, feature i + D/2 its imaginary part; each turns by its angle."""
    half = config.width // 2
    each = [[p / config.theta ** (i / half) for i in range(half)] for p in range(len(x))]
    angles = torch.tensor(each, dtype=torch.float64)
    turned = torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), 1)


def attended(x, p, config):
    """Attention (T, C), one head of queries after another."""
    outputs = []
    for number in range(config.heads):
        shared = number // (config.heads // config.kv_heads)
        q = head(x, p["self_attn.q_proj.weight"], p.get("self_attn.q_proj.bias"), number, config)
        k, v = (
            head(x, p[f"self_attn.{n}_proj.weight"], p.get(f"self_attn.{n}_proj.bias"), shared, config) for n in "kv"
        )
        if config.kind == "qwen3":
            q, k = normed(q, p["self_attn.q_norm.weight"], config), normed(k, p["self_attn.k_norm.weight"], config)
        scores = rotated(q, config) @ rotated(k, config).T / math.sqrt(config.width)
        for t in range(len(x)):
            scores[t, t + 1 :] = -math.inf
        outputs.append(scores.softmax(1) @ v)
    return torch.cat(outputs, 1) @ p["self_attn.o_proj.weight"].T


def by_formula(ids, parameters, config):
    """Logits (T, V) of one sequence."""
    x = parameters["embed_tokens.weight"][ids]
    for number in range(config.layers):
        p = {n.partition(".")[2]: v for n, v in parameters.items() if n.startswith(f"layers_{number}.")}
        x = x + attended(normed(x, p["input_layernorm.weight"], config), p, config)
        y = normed(x, p["post_attention_layernorm.weight"], config)
        gate = y @ p["mlp.gate_proj.weight"].T
        x = x + (gate / (1 + (-gate).exp()) * (y @ p["mlp.up_proj.weight"].T)) @ p["mlp.down_proj.weight"].T
    return normed(x, parameters["norm.weight"], config) @ parameters["lm_head.weight"].T


@pytest.mark.parametrize("config", VARIANTS, ids=lambda config: config.kind)
def test_logits_are_those_of_the_formulas(config):
    row, ids = built(config), torch.arange(14).view(2, 7) * 5 % 17
    parameters = row.state_dict()
    wanted = torch.stack([by_formula(each, parameters, config) for each in ids])
    assert (row(ids) - wanted).abs().max() < 1e-12


@pytest.mark.parametrize("config", VARIANTS, ids=lambda config: config.kind)
def test_the_closed_form_has_every_parameter(config):
    named = built(config).named_parameters()
    assert {name: tuple(each.shape) for name, each in named} == shapes(config)


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [
        ("smollm2-135m", 134_515_008),
        ("smollm2-360m", 361_821_120),
        ("tinyllama-1.1b", 1_100_048_384),
        ("llama2-7b", 6_738_415_616),
        ("llama3-8b", 8_030_261_248),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen3-0.6b", 596_049_920),
    ],
)
def test_presets_have_the_published_numbers_of_parameters(preset, parameters):
    assert LLAMA_PRESETS[preset].parameters == parameters


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kv_heads": 3}, r"\(heads: 4, keys: 3\)"),
        ({"d_model": 18}, "no even number of features"),
        ({"d_model": 12}, "no even number of features"),
        ({"hidden": 0}, "hidden must be at least 1"),
    ],
)
def test_impossible_sizes_are_refused(given, message):
    with pytest.raises(UsageError, match=message):
        LlamaConfig(**{**SIZES, **given})
