"""SWARM's Transformer language model: GPT-2 with rotary embeddings and gated feed-forwards, cut between any two layers.

A layer of the row may be a group of layers with one set of parameters, run one after another. Where the stream is to
be narrow between stages, the layer before makes it so and the layer after makes it wide again: that replaces the
residual stream.

Shapes: B microbatch, T tokens of a sequence, C width, H heads, D = C/H, V vocabulary, k how many times narrower.
Source: Ryabinin et al., SWARM Parallelism, section 4.3, appendices G and I; Su et al., RoFormer, section 3.4.2;
Shazeer, GLU Variants Improve Transformer, section 2.
"""

from functools import partial

import torch
from torch import nn
from torch.nn import functional

import pipelined as pp
from apps.common.lm.models.gelu import gelu
from apps.common.lm.models.gpt2 import GPT2, Attention, Block, Conv1D, Transformer, empty_embedding
from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.common.lm.models.rotary_presets import BASE, RotaryConfig, layer_costs
from pipelined.random.keyed_random import dropout
from pipelined.training.stages.key_values import token_positions


class RotaryLM(GPT2):
    """The paper's model as a row of layers: the embedding, the groups, then the final norm with the head.

    Args:
        config: its sizes.
    """

    config: RotaryConfig

    @property
    def layers(self) -> int:
        return self.config.groups + 2

    def costs(self, sequence: int) -> list[float]:
        """Floating-point operations a token of a forward through each layer."""
        return layer_costs(self.config, sequence)

    def shape_of(self, layer: int, microbatch_size: int, sequence: int) -> tuple[int, ...]:
        """Shape of what flows into a layer: ids, then the stream, narrow or not; beyond the last layer, logits."""
        if layer in self.config.narrow:
            return (microbatch_size, sequence, self.config.narrow_width)
        return super().shape_of(layer, microbatch_size, sequence)

    def _part(self, layers: range) -> nn.Module:
        return RotaryPart(self.config, layers)


def builders(config: RotaryConfig, seed: int) -> dict[str, pp.LayerBuilder]:
    """What builds each layer, by name, in order, with the initial values of a swarm of this seed.

    A parameter has its name in a swarm behind the layer's: `group_0.transformer.h.0.ln_1.weight`.
    """
    model = RotaryLM(config)
    groups = [f"group_{number}" for number in range(config.groups)]
    names = ["embedding", *groups, "head"]
    return {name: partial(_layer, model, number, seed) for number, name in enumerate(names)}


def _layer(model: RotaryLM, number: int, seed: int) -> nn.Module:
    return model.build(range(number, number + 1), torch.float32, torch.get_default_device(), seed)


class RotaryTransformer(Transformer):
    """The modules below `transformer.`, with those that make the stream narrow and wide again."""

    squeeze: nn.ModuleDict
    widen: nn.ModuleDict


class RotaryPart(nn.Module):
    """A range of the model's layers; only what they need is held, under global names."""

    def __init__(self, config: RotaryConfig, layers: range):
        super().__init__()
        self.layers, self.config = layers, config
        narrowing = [layer for layer in layers if layer + 1 in config.narrow]
        self.transformer = RotaryTransformer()
        if 0 in layers:
            self.transformer.wte = empty_embedding(config.vocab, config.d_model)
        groups = [layer - 1 for layer in layers if 1 <= layer <= config.groups]
        self.transformer.h = nn.ModuleDict({str(i): Group(config, f"h.{i}") for i in groups})
        self.transformer.squeeze = nn.ModuleDict({str(i): Squeeze(config) for i in narrowing})
        self.transformer.widen = nn.ModuleDict({str(i): _widen(config) for i in layers if i in config.narrow})
        if config.groups + 1 in layers:
            self.transformer.ln_f = nn.LayerNorm(config.d_model)
            self.lm_head = nn.Linear(config.d_model, config.vocab, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the layers in order; see `RotaryLM.shape_of` for what goes in and comes out."""
        for layer in self.layers:
            if layer in self.config.narrow:
                x = self.transformer.widen[str(layer)](x)  # (B, T, C/k), then (B, T, C)
            x = self._layer(layer, x)
            if layer + 1 in self.config.narrow:
                x = self.transformer.squeeze[str(layer)](x)  # (B, T, C/k)
        return x

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.config.identity().items())

    def _layer(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        if layer == 0:
            return dropout(self.transformer.wte(x), self.config.dropout, "embedding")  # (B, T, C)
        if layer <= self.config.groups:
            return self.transformer.h[str(layer - 1)](x)  # (B, T, C)
        return self.lm_head(self.transformer.ln_f(x))  # (B, T, V)


class Group(Block):
    """Layers with one set of parameters, run one after another; each draws its own dropout."""

    def __init__(self, config: RotaryConfig, place: str):
        super().__init__(config, place, RotaryAttention, GatedFeedForward)
        self.shared = config.shared

    def forward(self, x: torch.Tensor, turn: str = "") -> torch.Tensor:
        for number in range(self.shared):
            x = super().forward(x, f"{turn}.{number}")  # (B, T, C)
        return x


class RotaryAttention(Attention):
    """Causal self-attention in which queries and keys are turned by their positions."""

    def _with_positions(self, x: torch.Tensor) -> torch.Tensor:
        return rotate(x)


class GatedFeedForward(nn.Module):
    """GeGLU, 4 C wide: one affine map through a GELU times another, then back."""

    def __init__(self, config: ModelConfig, place: str):
        super().__init__()
        self.dropout, self.place = config.dropout, place
        self.c_fc = Conv1D(config.d_model, 8 * config.d_model)
        self.c_proj = Conv1D(4 * config.d_model, config.d_model)

    def forward(self, x: torch.Tensor, turn: str = "") -> torch.Tensor:
        gate, value = self.c_fc(x).chunk(2, dim=-1)  # each (B, T, 4 C)
        y = self.c_proj(gelu(gate) * value)  # (B, T, C)
        return dropout(y, self.dropout, f"{self.place}.residual{turn}")


class Squeeze(nn.Module):
    """What leaves a stage, k times narrower: a norm, a linear map or the greatest of k features, a norm."""

    def __init__(self, config: RotaryConfig):
        super().__init__()
        self.factor = config.factor
        self.ln_in = nn.LayerNorm(config.d_model)
        if config.squeeze == "bottleneck":
            self.linear = nn.Linear(config.d_model, config.narrow_width, bias=False)
        self.ln_out = nn.LayerNorm(config.narrow_width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.ln_in(x)  # (B, T, C)
        x = self.linear(x) if hasattr(self, "linear") else maxout(x, self.factor)  # (B, T, C/k)
        return self.ln_out(x)


def maxout(x: torch.Tensor, k: int) -> torch.Tensor:
    """The greatest of every k adjacent features: (…, C) in, (…, C/k) out.

    Source: Goodfellow et al., Maxout Networks, section 3.
    """
    return functional.max_pool1d(x.flatten(0, -2), k).unflatten(0, x.shape[:-1])


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Turn each pair of adjacent features of a token by its position times the pair's angle: (…, T, D) in and out.

    Pair i of D/2 turns by `BASE ** (-2 i / D)` a token, so that products of queries and keys know distances alone.
    """
    positions = token_positions(x.shape[-2], x.device).double()  # (T)
    pairs = torch.arange(0, x.shape[-1], 2, dtype=torch.float64, device=x.device)  # (D/2)
    angles = torch.outer(positions, BASE ** (-pairs / x.shape[-1]))  # (T, D/2)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]  # each (…, T, D/2)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def _widen(config: RotaryConfig) -> nn.Module:
    return nn.Linear(config.narrow_width, config.d_model, bias=False)
