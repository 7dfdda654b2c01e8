"""Attention by heads, and a Transformer's layer around it: each rank has its own heads of its own rows.

Shapes: B rows, T tokens of a row, E width, H heads, K = E / H numbers of a head.
"""

from collections.abc import Mapping
from functools import partial
from typing import TypeGuard

import torch
from torch import nn
from torch.nn.functional import gelu, relu, scaled_dot_product_attention

from pipelined.errors import UsageError
from pipelined.sharding import Layout, Shards
from pipelined.sharding.factors import Factors
from pipelined.sharding.operators.matmul import SplitMatmul, multiply
from pipelined.sharding.operators.stream import residual
from pipelined.sharding.operators.verbs import Value
from pipelined.sharding.shards import take
from pipelined.training.models.attention import SelfAttention
from pipelined.training.models.split.layer import ForwardPass, Pieces, SplitLayer, SplitPart
from pipelined.training.models.split.local import ELEMENTWISE

HEADS = 3
"""The dimension of the heads in (B, T, 3, H, K); one fewer after the attention."""
PARTS: Mapping[str, tuple[type[nn.Module], ...]] = {
    "self_attn": (nn.MultiheadAttention,),
    **dict.fromkeys(("linear1", "linear2"), (nn.Linear,)),
    **dict.fromkeys(("norm1", "norm2"), (nn.LayerNorm, nn.RMSNorm)),
    **dict.fromkeys(("dropout", "dropout1", "dropout2"), (nn.Dropout,)),
}
"""The layers in a Transformer's layer that is split, with the classes that they may have; its activation is the ninth.
"""
FORWARD = ("linear1", "dropout", "linear2", "dropout2")
"""Those of its second half; the activation follows the first."""
FUNCTIONS = {relu: nn.ReLU, gelu: nn.GELU}


def is_encoder(module: nn.Module) -> TypeGuard[nn.TransformerEncoderLayer]:
    """Whether this is a Transformer's layer that is split: of rows first, as torch builds it, or with RMSNorms."""
    if type(module) is not nn.TransformerEncoderLayer:
        return False
    attention, activation = module.self_attn, module.activation
    if any(type(module.get_submodule(key)) not in kinds for key, kinds in PARTS.items()) or not attention.batch_first:
        return False
    plain = attention._qkv_same_embed_dim and attention.bias_k is None and not attention.add_zero_attn
    return plain and (activation in FUNCTIONS or type(activation) in ELEMENTWISE)


class SplitAttention(SplitLayer):
    """The self-attention of a `SelfAttention`, or of a Transformer's layer, which has no mask.

    Args:
        inner, outer: the factors of in_proj and of out_proj.
        layer: the layer of the row to which it belongs, under whose name the dropout's numbers are drawn.
    Raises:
        UsageError: there are more column shards than heads.
    Cost: with dropout, the mask of all heads and rows on every rank, as torch's generator has no index.
    """

    module: nn.MultiheadAttention

    def __init__(self, name: str, module: nn.MultiheadAttention, inner: Factors, outer: Factors, *, layer: str):
        rows, columns, contraction = inner
        super().__init__(name, module, rows * columns * contraction)
        heads = module.num_heads
        width = module.embed_dim
        self._layer = layer
        self._require_heads(max(self.ranks // factors[0] for factors in (inner, outer)))
        self.row_shards = max(rows, outer[0])
        self.split_text = "in_proj {}.{}.{} out_proj {}.{}.{}".format(*inner, *outer)
        self._inner = SplitMatmul(inner, (width,), (3, heads, module.head_dim), cut=1)
        self._outer = SplitMatmul(outer, (heads, module.head_dim), (width,))

    def stream(self, lead: tuple[int, ...]) -> Shards:
        """How its input lies, split over all ranks; lead: (B, T)."""
        return self._inner.input_shards(lead)

    def parts(self) -> list[SplitPart]:
        return [SplitPart(lambda x: x if x.is_uniform else self.stream(x.lengths[:-1]), self.forward)]

    def parameters(self) -> dict[str, Shards]:
        by_name = {"in_proj_weight": self._inner.table, "in_proj_bias": self._inner.bias}
        by_name |= {"out_proj.weight": self._outer.table, "out_proj.bias": self._outer.bias}
        return {name: by_name[name] for name, _ in self.module.named_parameters()}

    async def forward(self, forward_pass: ForwardPass, x: Value, pieces: Pieces) -> Value:
        if len(x.shards.lengths) != 3:
            fact = f"layer {self.name} takes {x.shards.lengths}, where attention is split of (rows, tokens, width)"
            raise UsageError(f"{fact}; give it three dimensions, or use tensor 1")
        x = await multiply(
            forward_pass.verbs, self._inner, x, pieces["in_proj_weight"], pieces.get("in_proj_bias"), transposed=True
        )
        x = await self._attend(forward_pass, x)
        return await multiply(
            forward_pass.verbs, self._outer, x, pieces["out_proj.weight"], pieces.get("out_proj.bias"), transposed=True
        )

    async def _attend(self, forward_pass: ForwardPass, x: Value) -> Value:
        """(B, T, 3, H, K) to (B, T, H, K), split alike."""
        rows, tokens, _, heads, numbers = x.shards.lengths
        cuts = {dimension - (dimension >= HEADS): axes for dimension, axes in x.shards.layout.cuts.items()}
        result = Shards(x.shards.mesh, (rows, tokens, heads, numbers), Layout.of(cuts))
        own_rows, _, _, own_heads, _ = x.shards.pieces(forward_pass.verbs.rank)
        piece = (own_rows, own_heads, ((0, tokens),), ((0, tokens),))
        keep = 1.0 - self.module.dropout
        causal = isinstance(self.module, SelfAttention) and self.module.causal

        def work(x: torch.Tensor) -> torch.Tensor:
            if forward_pass.random is None or keep == 1.0:
                return attend_heads(x, causal)
            noise = torch.empty(rows, heads, tokens, tokens, dtype=x.dtype, device=x.device)
            noise = noise.bernoulli_(keep, generator=forward_pass.generator(self._layer, x.device))
            return attend_heads(x, causal, take(noise, piece).div_(keep or 1.0))

        return await forward_pass.verbs.compute("attention", work, x, result=result)

    def _require_heads(self, shards: int) -> None:
        if shards <= (heads := self.module.num_heads):
            return
        fits = max(columns for columns in range(1, heads + 1) if self.ranks % columns == 0)
        rows = self.ranks // fits
        fact = f"more column shards than heads (layer {self.name}, shards: {shards}, heads: {heads})"
        layout = f"{self.name}.in_proj={rows}.{fits}.1,{self.name}.out_proj={rows}.1.{fits}"
        raise UsageError(f"{fact}; split the rows further, as layout {layout} does, or use tensor {heads} or less")


class SplitEncoderLayer(SplitLayer):
    """A Transformer's layer. Between its halves the stream lies as the attention's input, split over all ranks.

    Args:
        attention: its `self_attn`.
        parts: its other layers and its activation, by name.
    """

    module: nn.TransformerEncoderLayer

    def __init__(
        self, name: str, module: nn.Module, ranks: int, attention: SplitAttention, parts: Mapping[str, SplitLayer]
    ):
        super().__init__(name, module, ranks)
        self._attention = attention
        self._parts = {"self_attn": attention, **parts}
        self.row_shards = max(part.row_shards for part in self._parts.values())
        linear = (f"{part} {self._parts[part].split_text}" for part in ("linear1", "linear2"))
        self.split_text = " ".join((attention.split_text, *linear))

    def parameters(self) -> dict[str, Shards]:
        parts = self._parts.items()
        return {f"{key}.{name}": shards for key, part in parts for name, shards in part.parameters().items()}

    def parts(self) -> list[SplitPart]:
        halves = (self._attention_half, ("self_attn.",)), (self._linear_half, ("linear1.", "linear2."))
        return [SplitPart(self._stream, half, prefixes) for half, prefixes in halves]

    def _stream(self, x: Shards) -> Shards:
        return self._attention.stream(x.lengths[:-1])

    async def forward(self, forward_pass: ForwardPass, x: Value, pieces: Pieces) -> Value:
        x = await forward_pass.verbs.move(x, self._stream(x.shards))
        return await self._linear_half(forward_pass, await self._attention_half(forward_pass, x, pieces), pieces)

    async def _attention_half(self, forward_pass: ForwardPass, x: Value, pieces: Pieces) -> Value:
        run = partial(self._run, forward_pass, pieces)
        if self.module.norm_first:
            return await residual(forward_pass.verbs, x, await run(await run(x, "norm1"), "self_attn", "dropout1"))
        return await run(await residual(forward_pass.verbs, x, await run(x, "self_attn", "dropout1")), "norm1")

    async def _linear_half(self, forward_pass: ForwardPass, x: Value, pieces: Pieces) -> Value:
        run = partial(self._run, forward_pass, pieces)
        if self.module.norm_first:
            return await residual(forward_pass.verbs, x, await run(x, "norm2", *FORWARD))
        return await run(await residual(forward_pass.verbs, x, await run(x, *FORWARD)), "norm2")

    async def _run(self, forward_pass: ForwardPass, pieces: Pieces, x: Value, *parts: str) -> Value:
        """Some of its layers, one after the other; the activation follows linear1."""
        for key in parts:
            prefix = f"{key}."
            part_pieces = {name.removeprefix(prefix): pieces[name] for name in pieces if name.startswith(prefix)}
            x = await self._parts[key].forward(forward_pass, x, part_pieces)
            if key == "linear1":
                x = await self._parts["activation"].forward(forward_pass, x, {})
        return x


def attend_heads(x: torch.Tensor, causal: bool, noise: torch.Tensor | None = None) -> torch.Tensor:
    """Attention of whole heads: (B, T, 3, H, K) to (B, T, H, K); noise multiplies the weights, (B, H, T, T)."""
    query, key, value = x.permute(2, 0, 3, 1, 4)  # each (B, H, T, K)
    if noise is None:
        return scaled_dot_product_attention(query, key, value, is_causal=causal).transpose(1, 2)
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return (scores.softmax(-1) * noise @ value).transpose(1, 2)
