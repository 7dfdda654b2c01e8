"""Layers without parameters, which a rank computes on its own piece: activations, pooling, flattening, dropout."""

import copy
from collections.abc import Callable

import torch
from torch import nn

from pipelined.errors import UsageError
from pipelined.sharding import Layout, Shards
from pipelined.sharding.operators.verbs import Value
from pipelined.sharding.shards import take
from pipelined.training.models.split.layer import ForwardPass, Pieces, SplitLayer, split_by_rows

SplittableDimensions = Callable[[nn.Module, int], range | set[int]]
"""The dimensions of a layer's input that may be split, from the layer and their number."""

ELEMENTWISE: tuple[type[nn.Module], ...] = (
    *(nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Sigmoid, nn.LogSigmoid, nn.Tanh, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Softplus, nn.Softsign),
)
POOLS: tuple[tuple[type[nn.Module], ...], ...] = (
    (nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d),
    (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
    (nn.MaxPool3d, nn.AvgPool3d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool3d),
)
"""By the dimensions that they pool: the last one, two or three."""
LOCAL: dict[type[nn.Module], SplittableDimensions] = {
    **dict.fromkeys(ELEMENTWISE, lambda layer, dims: range(dims)),
    **dict.fromkeys(POOLS[0], lambda layer, dims: range(dims - 1)),
    **dict.fromkeys(POOLS[1], lambda layer, dims: range(dims - 2)),
    **dict.fromkeys(POOLS[2], lambda layer, dims: range(dims - 3)),
    **dict.fromkeys((nn.Softmax, nn.LogSoftmax), lambda layer, dims: _all_but_one(layer, dims)),
}
"""Which dimensions may be split, by the layer's class: all, or all but the pooled, or all but that of a softmax."""


class LocalLayer(SplitLayer):
    """A layer that leaves the lengths of the dimensions that may be split."""

    def __init__(self, name: str, module: nn.Module, ranks: int):
        super().__init__(name, module, ranks)
        self._work = copy.deepcopy(module)
        if hasattr(self._work, "inplace"):
            self._work.__dict__["inplace"] = False  # what it takes is kept

    async def forward(self, forward_pass: ForwardPass, x: Value, pieces: Pieces) -> Value:
        shape = self.output_shape(x)
        splittable = LOCAL[type(self.module)](self.module, len(x.shards.lengths))
        if 0 not in splittable:
            fact = f"layer {self.name}, {self.module}, mixes the rows of its input (shape: {shape})"
            raise UsageError(f"{fact}; give it another dimension, or use tensor 1")
        if not set(x.shards.layout.cuts) <= set(splittable):
            x = await split_by_rows(forward_pass.verbs, x)
        result = Shards(x.shards.mesh, shape, x.shards.layout)
        return await forward_pass.verbs.compute(self.kind, self._work, x, result=result)


class SplitFlatten(SplitLayer):
    """Flattens all but the rows. Ranks that have equally many channels keep them; else the rows are split."""

    async def forward(self, forward_pass: ForwardPass, x: Value, pieces: Pieces) -> Value:
        result = self._flattened_shards(x)
        if result is None:
            x = await split_by_rows(forward_pass.verbs, x)
            result = Shards(x.shards.mesh, self.output_shape(x), x.shards.layout)
        return await forward_pass.verbs.compute(self.kind, lambda x: x.flatten(1), x, result=result)

    def _flattened_shards(self, x: Value) -> Shards | None:
        """How the output lies if every rank flattens its piece; None where no layout says that."""
        shape = self.output_shape(x)
        cuts = x.shards.layout.cuts
        if not set(cuts) <= {0, 1}:
            return None
        result = Shards(x.shards.mesh, shape, Layout.of(cuts))
        per_channel = shape[1] // x.shards.lengths[1]
        for rank in range(self.ranks):
            rows, channels, *_ = x.shards.pieces(rank)
            if result.pieces(rank) != (rows, tuple((low * per_channel, high * per_channel) for low, high in channels)):
                return None
        return result


class SplitDropout(SplitLayer):
    """Dropout with the mask that a plain loop draws: each rank draws the whole, and takes its piece of it.

    Args:
        layer: the layer of the row to which it belongs, under whose name the numbers are drawn.
        tokens_first: whether a plain loop's tensor, (B, T, ...), has the rows of one token side by side in memory, as
            an attention's output: torch may draw in the order of memory.

    Cost: the whole mask on every rank, as torch's generator has no index.
    """

    module: nn.Dropout

    def __init__(self, name: str, module: nn.Module, ranks: int, layer: str, *, tokens_first: bool = False):
        super().__init__(name, module, ranks)
        self._layer, self._tokens_first = layer, tokens_first

    async def forward(self, forward_pass: ForwardPass, x: Value, pieces: Pieces) -> Value:
        keep = 1.0 - self.module.p
        shape = x.shards.lengths
        if forward_pass.random is None or keep == 1.0:
            return x
        piece = x.shards.pieces(forward_pass.verbs.rank)
        noise_shape = shape
        if not isinstance(self.module, nn.Dropout):  # one number a channel; without a batch, rows are the channels
            lead = 1 if (type(self.module), len(shape)) in ((nn.Dropout1d, 2), (nn.Dropout3d, 4)) else 2
            noise_shape = (*shape[:lead], *[1] * (len(shape) - lead))
            piece = (*piece[:lead], *[((0, 1),)] * (len(shape) - lead))

        def work(x: torch.Tensor) -> torch.Tensor:
            generator = forward_pass.generator(self._layer, x.device)
            noise = torch.empty(noise_shape, dtype=x.dtype, device=x.device)
            if self._tokens_first:
                noise = noise.transpose(0, 1).contiguous().transpose(0, 1)
            noise.bernoulli_(keep, generator=generator)
            return x * take(noise if keep == 0.0 else noise.div_(keep), piece)

        return await forward_pass.verbs.compute("dropout", work, x, result=x.shards)


def _all_but_one(layer: nn.Module, dims: int) -> set[int]:
    """All dimensions but that of a softmax; where it states none, it is the one that torch takes."""
    assert isinstance(layer, nn.Softmax | nn.LogSoftmax)
    dim = int(dims not in (1, 3)) if layer.dim is None else layer.dim
    return set(range(dims)) - {dim % dims}
