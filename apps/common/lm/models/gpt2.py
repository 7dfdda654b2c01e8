"""GPT-2 as published, cut between any two layers. Parameters bear Hugging Face's names and layouts.

Logits are equal bit for bit to those of `transformers` on the CPU. Everything random is keyed by (seed, parameter
name) or by (seed, step, microbatch, place), never drawn from a shared stream.

Shapes: B microbatch, T tokens of a sequence, C width, H heads, V vocabulary.
Source: Radford et al., Language Models are Unsupervised Multitask Learners, section 2.3.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from apps.common.lm.data.masking import IGNORED
from apps.common.lm.models.attention import causal_attention
from apps.common.lm.models.gelu import gelu
from apps.common.lm.models.gpt2_presets import ModelConfig, layer_costs
from pipelined.random.keyed_random import dropout, drops, keyed_generator
from pipelined.training.stages.key_values import token_positions

EMBEDDING, HEAD = "transformer.wte.weight", "lm_head.weight"


class GPT2:
    """A GPT-2 as a row of layers: the embedding, the blocks, then the final norm with the head.

    Args:
        config: its sizes.
        counts: whether some targets are ignored, so that a loss is a sum with its count.
    """

    def __init__(self, config: ModelConfig, counts: bool = False):
        self.config, self._counts = config, counts

    @property
    def layers(self) -> int:
        return self.config.layers + 2

    @property
    def tied(self) -> frozenset[str]:
        """The embedding's matrix, where the head computes with it too."""
        return frozenset({EMBEDDING} if self.config.tied else ())

    def costs(self, sequence: int) -> list[float]:
        """Floating-point operations a token of a forward through each layer."""
        return layer_costs(self.config, sequence)

    def build(self, layers: range, dtype: torch.dtype, device: torch.device | str, seed: int | None) -> nn.Module:
        """Build a range of layers; see `pipelined.training.job.model.Model`.

        Cost: no more memory than the parameters themselves and the largest of them once more.
        """
        with torch.device("meta"):
            part = self._part(layers)
        part = part.to(dtype)
        if torch.device(device).type == "meta":
            return part
        # `to_empty` would import the symbolic shapes of torch's compiler, for half as long as all of torch takes.
        part = part._apply(lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device=device))
        if seed is not None:
            for name, parameter in part.named_parameters():
                initialise(parameter, name, seed, self.config)
        return part

    def _part(self, layers: range) -> nn.Module:
        return Part(self.config, layers)

    def loss(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, int]:
        """See `token_loss` and `counted_loss`."""
        return counted_loss(output, targets) if self._counts else token_loss(output, targets)

    def shape_of(self, layer: int, microbatch_size: int, sequence: int) -> tuple[int, ...]:
        """Shape of what flows into a layer: ids, then the residual stream; beyond the last layer, logits."""
        if layer == 0:
            return (microbatch_size, sequence)
        return (microbatch_size, sequence, self.config.d_model if layer < self.layers else self.config.vocab)

    def identity(self) -> Mapping[str, Any]:
        """The sizes that a checkpoint must share."""
        return self.config.identity()


def token_loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in nats a token, computed in float32, or in float64 where the logits are.

    Args:
        output: logits, (B, T, V).
        targets: ids, (B, T).
    """
    exact = output if output.dtype == torch.float64 else output.float()
    return functional.cross_entropy(exact.flatten(0, 1), targets.flatten())  # (B·T, V), (B·T)


def counted_loss(output: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, int]:
    """As `token_loss`, but the sum over the targets that are not -100 (`IGNORED`), and their number."""
    exact = output if output.dtype == torch.float64 else output.float()
    total = functional.cross_entropy(exact.flatten(0, 1), targets.flatten(), reduction="sum")
    return total, int((targets != IGNORED).sum())


class UntiedGPT2(GPT2):
    """A GPT-2 with a matrix of its own for the head, for stages that share no parameter.

    The head begins as the embedding's matrix, so before the first step the logits are the tied model's to the bit; from
    then on the two matrices learn apart.
    """

    def build(self, layers: range, dtype: torch.dtype, device: torch.device | str, seed: int | None) -> nn.Module:
        """Build a range of layers, the head drawn under the embedding's name; see `training.job.model.Model`."""
        part = super().build(layers, dtype, device, seed)
        head = dict(part.named_parameters()).get(HEAD)
        if head is not None and seed is not None and head.device.type != "meta":
            initialise(head, EMBEDDING, seed, self.config)
        return part


class Transformer(nn.Module):
    """The modules below `transformer.`, as Hugging Face's GPT-2 names them; a stage has those of its layers."""

    wte: nn.Embedding
    wpe: nn.Embedding
    h: nn.ModuleDict
    ln_f: nn.LayerNorm


class Part(nn.Module):
    """A range of a GPT-2's layers. Only what these layers need is held.

    The modules nest as Hugging Face's do, so that `named_parameters()` gives the global names.
    """

    def __init__(self, config: ModelConfig, layers: range):
        super().__init__()
        self.layers = layers
        self.dropout = config.dropout
        self.top = config.layers + 1
        self.transformer = Transformer()
        if 0 in layers or (self.top in layers and config.tied):
            self.transformer.wte = empty_embedding(config.vocab, config.d_model)
        if 0 in layers:
            self.transformer.wpe = empty_embedding(config.positions, config.d_model)
        blocks = [i for i in range(config.layers) if i + 1 in layers]
        self.transformer.h = nn.ModuleDict({str(i): Block(config, f"h.{i}") for i in blocks})
        if self.top in layers:
            self.transformer.ln_f = nn.LayerNorm(config.d_model)
        if self.top in layers and not config.tied:
            self.lm_head = nn.Linear(config.d_model, config.vocab, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the layers in order; see `shape_of` for what goes in and comes out."""
        for layer in self.layers:
            x = self._layer(layer)(x)
        return x

    def _layer(self, layer: int) -> Callable[[torch.Tensor], torch.Tensor]:
        if layer == 0:
            return self._embed
        return self._head if layer == self.top else self.transformer.h[str(layer - 1)]

    def _embed(self, ids: torch.Tensor) -> torch.Tensor:
        positions = token_positions(ids.shape[1], ids.device)  # (T)
        x = self.transformer.wte(ids) + self.transformer.wpe(positions)  # (B, T, C)
        return dropout(x, self.dropout, "embedding")

    def _head(self, x: torch.Tensor) -> torch.Tensor:
        matrix = self.lm_head if hasattr(self, "lm_head") else self.transformer.wte
        return functional.linear(self.transformer.ln_f(x), matrix.weight)  # (B, T, V)


Half = Callable[[ModelConfig, str], nn.Module]


class Block(nn.Module):
    """Attention, then a feed-forward network, each after a norm and around a residual.

    Args:
        place: its name among the keyed draws.
        attention: what the first half is built by, of a config and a place.
        feed_forward: what the second half is built by.
    """

    def __init__(
        self, config: ModelConfig, place: str, attention: Half | None = None, feed_forward: Half | None = None
    ):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.d_model)
        self.attn = (attention or Attention)(config, f"{place}.attn")
        self.ln_2 = nn.LayerNorm(config.d_model)
        self.mlp = (feed_forward or FeedForward)(config, f"{place}.mlp")

    def forward(self, x: torch.Tensor, turn: str = "") -> torch.Tensor:
        """Run both halves; `turn` is added to the place of every draw where a forward runs the block several times."""
        x = x + self.attn(self.ln_1(x), turn)  # (B, T, C)
        return x + self.mlp(self.ln_2(x), turn)  # (B, T, C)


class Attention(nn.Module):
    """Causal self-attention with H heads."""

    def __init__(self, config: ModelConfig, place: str):
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.place = place
        self.c_attn = Conv1D(config.d_model, 3 * config.d_model)
        self.c_proj = Conv1D(config.d_model, config.d_model)

    def forward(self, x: torch.Tensor, turn: str = "") -> torch.Tensor:
        parts = self.c_attn(x).unflatten(2, (3, self.heads, -1))  # (B, T, 3, H, C/H)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # each (B, H, T, C/H)
        query, key = self._with_positions(query), self._with_positions(key)
        drop = partial(dropout, p=self.dropout, place=f"{self.place}.weights{turn}")
        y = causal_attention(query, key, value, drop if drops(self.dropout) else None)
        y = self.c_proj(y.transpose(1, 2).flatten(2))  # (B, T, C)
        return dropout(y, self.dropout, f"{self.place}.residual{turn}")

    def _with_positions(self, x: torch.Tensor) -> torch.Tensor:
        """Queries or keys (B, H, T, C/H) that know where they stand; here x came with its positions added."""
        return x


class FeedForward(nn.Module):
    """Two affine maps with a GELU between, 4 C wide."""

    def __init__(self, config: ModelConfig, place: str):
        super().__init__()
        self.dropout, self.place = config.dropout, place
        self.c_fc = Conv1D(config.d_model, 4 * config.d_model)
        self.c_proj = Conv1D(4 * config.d_model, config.d_model)

    def forward(self, x: torch.Tensor, turn: str = "") -> torch.Tensor:
        y = self.c_proj(gelu(self.c_fc(x)))  # (B, T, 4 C), then (B, T, C)
        return dropout(y, self.dropout, f"{self.place}.residual{turn}")


class Conv1D(nn.Module):
    """An affine map with its weight stored as (in, out), as GPT-2's checkpoints store it."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.addmm(self.bias, x.flatten(0, -2), self.weight)  # (B·T, out)
        return y.unflatten(0, x.shape[:-1])  # (B, T, out)


def empty_embedding(rows: int, width: int) -> nn.Embedding:
    """An embedding without values yet: drawn on the meta device they would cost the import of torch's compiler."""
    return nn.Embedding(rows, width, _weight=torch.empty(rows, width))


@torch.no_grad()
def initialise(parameter: nn.Parameter, name: str, seed: int, config: ModelConfig) -> None:
    """Fill a parameter with its initial values, drawn in float32 on the CPU whatever its dtype and device.

    Biases are 0, norms' weights 1, matrices normal with the config's deviation; those that end a residual are divided
    by the square root of the number of residuals, 2 L.
    """
    if name.endswith(".bias"):
        parameter.zero_()
    elif parameter.dim() == 1:
        parameter.fill_(1.0)
    else:
        deviation = config.deviation / (math.sqrt(2 * config.layers) if name.endswith("c_proj.weight") else 1.0)
        generator = keyed_generator(seed, name)
        parameter.copy_(torch.empty(parameter.shape).normal_(0.0, deviation, generator=generator))
