"""BERT with its head for masked tokens, as a row of layers of `pipelined.Sequential`.

Below each layer the names are Hugging Face's. Dropout is torch's own: the runtime keys it by layer.

Shapes: B microbatch, T tokens of a sequence, C width, H heads, F width of the feed-forward, V vocabulary.
Source: Devlin et al., BERT, section 3; Vaswani et al., Attention Is All You Need, section 3.
"""

from functools import partial

import torch
from torch import nn
from torch.nn import functional

import pipelined as pp
from apps.common.lm.models.bert_presets import BertConfig
from apps.common.lm.models.llama import normal_embedding, normal_linear
from pipelined.training.graph.recompute import attention_core


def builders(config: BertConfig) -> dict[str, pp.LayerBuilder]:
    """What builds each layer, by name, in order: ids (B, T) to logits (B, T, V)."""
    embeddings: pp.LayerBuilder = partial(Embeddings, config)
    decoder: pp.LayerBuilder = partial(Decoder, config)
    if config.tied:
        embeddings, decoder = pp.tied("words", embeddings), pp.tied("words", decoder)
    blocks: dict[str, pp.LayerBuilder] = {f"layer_{number}": partial(Block, config) for number in range(config.layers)}
    return {"embeddings": embeddings, **blocks, "transform": partial(Transform, config), "decoder": decoder}


class Embeddings(nn.Module):
    """The sum of the embeddings of a token, its position and the first segment, after a norm."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.word_embeddings = normal_embedding(config.vocab, config.d_model, config.deviation)
        self.position_embeddings = normal_embedding(config.positions, config.d_model, config.deviation)
        self.token_type_embeddings = normal_embedding(config.types, config.d_model, config.deviation)
        self.LayerNorm = nn.LayerNorm(config.d_model, config.epsilon)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        positions = self.position_embeddings.weight[: ids.shape[1]]  # (T, C)
        x = self.word_embeddings(ids) + self.token_type_embeddings.weight[0] + positions  # (B, T, C)
        return self.dropout(self.LayerNorm(x))


class Block(nn.Module):
    """Attention, then a feed-forward network, each around a residual and before a norm."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.attention = nn.ModuleDict({"self": Attention(config), "output": ResidualNorm(config, config.d_model)})
        self.intermediate = nn.ModuleDict({"dense": _affine(config, config.d_model, config.hidden)})
        self.output = ResidualNorm(config, config.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attention["output"](self.attention["self"](x), x)  # (B, T, C)
        return self.output(functional.gelu(self.intermediate["dense"](x)), x)  # (B, T, F), then (B, T, C)


class Attention(nn.Module):
    """Self-attention with H heads, in which each token sees all."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self._heads, self._dropout = config.heads, config.dropout
        self.query, self.key, self.value = (_affine(config, config.d_model, config.d_model) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [projection(x).unflatten(2, (self._heads, -1)) for projection in (self.query, self.key, self.value)]
        query, key, value = (part.transpose(1, 2) for part in parts)  # each (B, H, T, C/H)
        probability = self._dropout if self.training else 0.0
        core = partial(functional.scaled_dot_product_attention, dropout_p=probability)
        y = attention_core(core, query, key, value)
        return y.transpose(1, 2).flatten(2)  # (B, T, C)

    def extra_repr(self) -> str:
        return f"heads={self._heads}, dropout={self._dropout:g}"


class ResidualNorm(nn.Module):
    """What ends each half of a block: a linear map, dropout, the residual, a norm."""

    def __init__(self, config: BertConfig, inputs: int):
        super().__init__()
        self.dense = _affine(config, inputs, config.d_model)
        self.LayerNorm = nn.LayerNorm(config.d_model, config.epsilon)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.dropout(self.dense(y)) + x)


class Transform(nn.Module):
    """What comes before the head's matrix: a linear map, a GELU, a norm."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.dense = _affine(config, config.d_model, config.d_model)
        self.LayerNorm = nn.LayerNorm(config.d_model, config.epsilon)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(functional.gelu(self.dense(x)))


class Decoder(nn.Module):
    """The head's matrix, by its name the embedding's where the two are tied, and a bias."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.word_embeddings = normal_linear(config.d_model, config.vocab, config.deviation)
        self.bias = nn.Parameter(torch.zeros(config.vocab))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.word_embeddings(x) + self.bias  # (B, T, V)


def _affine(config: BertConfig, inputs: int, outputs: int) -> nn.Linear:
    return normal_linear(inputs, outputs, config.deviation, bias=True)
