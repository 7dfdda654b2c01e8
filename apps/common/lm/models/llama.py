"""Llama as a row of layers of `pipelined.Sequential`, with Hugging Face's names below each layer.

Shapes: B microbatch, T tokens of a sequence, C width, H heads of queries, G of keys and values, D width of a head,
F width of the feed-forward, V vocabulary.
Source: Touvron et al., LLaMA, section 2.2; Zhang and Sennrich, Root Mean Square Layer Normalization; Su et al.,
RoFormer, section 3.4.2; Ainslie et al., GQA; Shazeer, GLU Variants Improve Transformer.
"""

from functools import partial
from typing import TypeVar

import torch
from torch import nn
from torch.nn import functional

import pipelined as pp
from apps.common.lm.models.attention import causal_attention
from apps.common.lm.models.gpt2 import empty_embedding
from apps.common.lm.models.llama_presets import LlamaConfig
from pipelined.training.stages.key_values import token_positions

L = TypeVar("L", nn.Embedding, nn.Linear)


def builders(config: LlamaConfig) -> dict[str, pp.LayerBuilder]:
    """What builds each layer, by name, in order: ids (B, T) to logits (B, T, V)."""
    embedding: pp.LayerBuilder = partial(normal_embedding, config.vocab, config.d_model, config.deviation)
    head: pp.LayerBuilder = partial(normal_linear, config.d_model, config.vocab, config.deviation)
    if config.tied:
        embedding, head = pp.tied("embedding", embedding), pp.tied("embedding", head)
    blocks: dict[str, pp.LayerBuilder] = {f"layers_{number}": partial(Block, config) for number in range(config.layers)}
    norm: pp.LayerBuilder = partial(RMSNorm, config.d_model, config.epsilon)
    return {"embed_tokens": embedding, **blocks, "norm": norm, "lm_head": head}


def normal_embedding(rows: int, width: int, deviation: float) -> nn.Embedding:
    """An embedding with normal initial values."""
    return _draw_weights(empty_embedding(rows, width), deviation)


def normal_linear(inputs: int, outputs: int, deviation: float, bias: bool = False) -> nn.Linear:
    """A linear map with normal initial values; a bias begins at 0."""
    layer = _draw_weights(nn.Linear(inputs, outputs, bias=bias), deviation)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def _draw_weights(layer: L, deviation: float) -> L:
    if layer.weight.device.type != "meta":  # drawing there would import torch's compiler
        nn.init.normal_(layer.weight, 0.0, deviation)
    return layer


class RMSNorm(nn.Module):
    """Features over the root of their mean square, times a weight each; in float32 at least."""

    def __init__(self, width: int, epsilon: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self._epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        exact = x if x.dtype == torch.float64 else x.float()
        scale = torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self._epsilon)  # (..., 1)
        return self.weight * (exact * scale).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self._epsilon}"


class Block(nn.Module):
    """Attention, then a gated feed-forward network, each after a norm and around a residual."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.input_layernorm = RMSNorm(config.d_model, config.epsilon)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.d_model, config.epsilon)
        self.mlp = GatedFeedForward(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))  # (B, T, C)
        return x + self.mlp(self.post_attention_layernorm(x))  # (B, T, C)


class Attention(nn.Module):
    """Causal self-attention in which H / G heads of queries share one of keys and values."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        self._width, self._theta = config.width, config.theta
        queries = config.heads * config.width
        keys = config.kv_heads * config.width
        biased = config.kind == "qwen2"
        self.q_proj = normal_linear(config.d_model, queries, config.deviation, biased)
        self.k_proj = normal_linear(config.d_model, keys, config.deviation, biased)
        self.v_proj = normal_linear(config.d_model, keys, config.deviation, biased)
        self.o_proj = normal_linear(queries, config.d_model, config.deviation)
        normed = config.kind == "qwen3"
        self.q_norm = RMSNorm(config.width, config.epsilon) if normed else nn.Identity()
        self.k_norm = RMSNorm(config.width, config.epsilon) if normed else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (self._heads(projection, x) for projection in (self.q_proj, self.k_proj, self.v_proj))
        query, key = rotate_halves(self.q_norm(query), self._theta), rotate_halves(self.k_norm(key), self._theta)
        y = causal_attention(query, key, value)  # (B, H, T, D)
        return self.o_proj(y.transpose(1, 2).flatten(2))  # (B, T, H·D), then (B, T, C)

    def _heads(self, projection: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """(B, T, C) to (B, H or G, T, D)."""
        return projection(x).unflatten(2, (-1, self._width)).transpose(1, 2)

    def extra_repr(self) -> str:
        return f"head_width={self._width}, theta={self._theta:g}"


def rotate_halves(x: torch.Tensor, theta: float) -> torch.Tensor:
    """Turn features i and i + D/2 of a token by its position times `theta ** (-2 i / D)`: (B, H, T, D) in and out."""
    exact = torch.float64 if x.dtype == torch.float64 else torch.float32
    features = torch.arange(0, x.shape[3], 2, dtype=torch.int64, device=x.device).to(exact)  # (D/2)
    positions = token_positions(x.shape[2], x.device).to(exact)  # (T)
    angles = torch.outer(positions, 1.0 / theta ** (features / x.shape[3]))  # (T, D/2)
    cos, sin = (values.repeat(1, 2).to(x.dtype) for values in (angles.cos(), angles.sin()))  # (T, D)
    first_half, second_half = x.chunk(2, dim=3)
    return x * cos + torch.cat((-second_half, first_half), dim=3) * sin


class GatedFeedForward(nn.Module):
    """SwiGLU: one linear map through a SiLU times another, then back."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.gate_proj = normal_linear(config.d_model, config.hidden, config.deviation)
        self.up_proj = normal_linear(config.d_model, config.hidden, config.deviation)
        self.down_proj = normal_linear(config.hidden, config.d_model, config.deviation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))  # (B, T, F), then (B, T, C)
