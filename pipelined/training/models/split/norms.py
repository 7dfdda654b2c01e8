"""Norms: their statistics are those of whole rows or channels, however these are split."""

from collections.abc import Sequence
from math import prod

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from pipelined.sharding import Layout, Shards
from pipelined.sharding.operators.stream import mean_square, moments, normalise, normalise_by_root
from pipelined.sharding.operators.verbs import Value, Verbs
from pipelined.sharding.shards import Piece
from pipelined.training.models.split.layer import ForwardPass, Pieces, SplitLayer
from pipelined.training.stages.running_statistics import NormCall

RUNNING = ("running_mean", "running_var")


class SplitLayerNorm(SplitLayer):
    """A LayerNorm; where ranks share a row they move two numbers of it, each way."""

    module: nn.LayerNorm

    async def forward(self, forward_pass: ForwardPass, x: Value, pieces: Pieces) -> Value:
        token = token_of(self.module, x)
        statistics = await moments(forward_pass.verbs, x, token)
        scale = await scale_pieces(forward_pass, x, pieces, token)
        return await normalise(forward_pass.verbs, x, statistics, scale, dimensions=token, eps=self.module.eps)


class SplitRMSNorm(SplitLayer):
    """An RMSNorm; where ranks share a row they move one number of it, each way."""

    module: nn.RMSNorm

    async def forward(self, forward_pass: ForwardPass, x: Value, pieces: Pieces) -> Value:
        token = token_of(self.module, x)
        square = await mean_square(forward_pass.verbs, x, token)
        scale = await scale_pieces(forward_pass, x, pieces, token)
        return await normalise_by_root(forward_pass.verbs, x, square, scale, dimensions=token, eps=self.module.eps)


class SplitBatchNorm(SplitLayer):
    """A batch norm over the rows of the whole microbatch; where ranks share a channel they move two numbers of it.

    Its running statistics are whole on every rank, which costs two numbers a channel more in the forward.
    """

    module: _BatchNorm

    async def forward(self, forward_pass: ForwardPass, x: Value, pieces: Pieces) -> Value:
        dims = [0, *range(2, len(x.shards.lengths))]
        running = [pieces[name] for name in RUNNING if name in pieces]
        if running and forward_pass.random is None:
            statistics = self._running_value(forward_pass.verbs, x, running)
        else:
            statistics = await moments(forward_pass.verbs, x, dims)
        if running and forward_pass.random is not None:
            await self._note(forward_pass.verbs, statistics, prod(x.shards.lengths[dim] for dim in dims))
        scale = await scale_pieces(forward_pass, x, pieces, (1,))
        return await normalise(forward_pass.verbs, x, statistics, scale, dimensions=(1,), eps=self.module.eps)

    def _running_value(self, verbs: Verbs, x: Value, running: Sequence[torch.Tensor]) -> Value:
        """The running statistics of this rank's channels."""
        shape = [*(length if dim == 1 else 1 for dim, length in enumerate(x.shards.lengths)), 2]
        shards = Shards(x.shards.mesh, shape, Layout.of({1: x.shards.layout.cuts.get(1, ())}))
        return Value(shards.local(torch.stack(tuple(running), -1).view(shape), verbs.rank), shards, False)

    async def _note(self, verbs: Verbs, moments: Value, count: int) -> None:
        """Note mean and variance of all channels, the variance as torch keeps it: with one fewer in the divisor."""
        shards = moments.shards
        whole = await verbs.move(Value(moments.array, shards, False), Shards(shards.mesh, shards.lengths, ""))
        mean, variance = whole.array.flatten(0, -2).unbind(-1)
        names = f"{self.name}.{RUNNING[0]}", f"{self.name}.{RUNNING[1]}"
        statistics = mean.clone(), variance * (count / (count - 1))
        verbs.note(NormCall(names, float(self.module.momentum or 0.0), statistics))


def token_of(module: nn.LayerNorm | nn.RMSNorm, x: Value) -> range:
    """The dimensions of x over which such a norm takes its statistics: the last ones."""
    dims = len(x.shards.lengths)
    return range(dims - len(module.normalized_shape), dims)


async def scale_pieces(forward_pass: ForwardPass, x: Value, pieces: Pieces, dims: Sequence[int]) -> list[Value]:
    """The parts of weight and bias that belong to this rank's piece of x.

    Args:
        dims: the dimensions of x that they have.
    """
    lengths = tuple(x.shards.lengths[dim] for dim in dims)
    cuts = {index: x.shards.layout.cuts[dim] for index, dim in enumerate(dims) if dim in x.shards.layout.cuts}
    result = Shards(x.shards.mesh, lengths, Layout.of(cuts))
    piece = result.pieces(forward_pass.verbs.rank)
    present = [pieces[name] for name in ("weight", "bias") if name in pieces]
    return [
        await forward_pass.verbs.compute("scale", lambda whole: cut_piece(whole, piece), tensor, result=result)
        for tensor in present
    ]


def cut_piece(whole: torch.Tensor, piece: Piece) -> torch.Tensor:
    """The elements of a tensor at these indices; as `shards.take`, with a gradient."""
    for dimension, ranges in enumerate(piece):
        parts = [whole.narrow(dimension, low, high - low) for low, high in ranges or ((0, 0),)]
        whole = torch.cat(parts, dimension) if len(parts) > 1 else parts[0]
    return whole
