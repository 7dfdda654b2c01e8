"""The operations on the residual stream, however it is split: the norm, and dropout and sum after a residual.

A norm takes two passes, the mean and then the mean square of what is left, because the difference of a sum of squares
and a squared sum loses half of the digits. Each pass reduces one number for each mean (a token's in a layer norm, a
channel's in a batch norm) to all ranks that have a part of it, in the forward and in the backward. Few ranks take both
passes on their own parts, and gather and merge what they found, which is as exact, in one move each way.

Source: Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample variances, 1979.
"""

from collections.abc import Sequence
from functools import partial
from math import prod

import torch

from pipelined.random.mask import dropout_of_piece
from pipelined.sharding.collective_moves import GATHERED
from pipelined.sharding.layout import Layout
from pipelined.sharding.operators.matmul import LEAD
from pipelined.sharding.operators.norm_work import MergedMoments, Normalisation, PartStatistics
from pipelined.sharding.operators.verbs import Operand, Value, Verbs
from pipelined.sharding.shards import Shards

EPS = 1e-5
"""What is added to the variance, as torch's norms do."""


async def layer_norm(verbs: Verbs, x: Value, weight: Operand, bias: Operand) -> Value:
    """Each token less its mean, over its deviation, times weight, plus bias.

    Args:
        x: (B, T, *token), however its tokens are split.
        weight, bias: this rank's pieces of tensors of the token's shape, split as x is.
    Cost: see `moments`.
    """
    token = range(LEAD, len(x.shards.lengths))
    return await normalise(verbs, x, await moments(verbs, x, token), (weight, bias), dimensions=token)


async def moments(verbs: Verbs, x: Value, dims: Sequence[int]) -> Value:
    """Mean and variance, (..., 2), over some dimensions of x, which stay with length 1; on all ranks that share them.

    Args:
        x: however it is split.
    Cost: 4 numbers a mean reduced to all ranks that have a part of it, 2 in each direction; or as many gathered from
    each of up to `GATHERED` ranks.
    """
    split = [axis for axis, dimension in x.shards.layout.split.items() if dimension in dims]
    summand, whole = _reduced_shards(x.shards, dims)
    pairs = Shards(whole.mesh, (*whole.lengths, 2), whole.layout)
    if prod(x.shards.mesh.sizes[axis] for axis in split) <= GATHERED:
        return await _gather_moments(verbs, x, tuple(dims), pairs, split)
    size, dims = prod(x.shards.lengths[dimension] for dimension in dims), tuple(dims)
    mean = await verbs.move(await verbs.compute("mean", partial(_mean, size, dims), x, result=summand), whole)
    square = await verbs.compute("variance", partial(_variance, size, dims), x, mean, result=summand)
    variance = await verbs.move(square, whole)
    return await verbs.compute("moments", lambda *pair: torch.stack(pair, -1), mean, variance, result=pairs)


async def mean_square(verbs: Verbs, x: Value, dims: Sequence[int]) -> Value:
    """The mean of squares over some dimensions of x, which stay with length 1; on all ranks that share them.

    Cost: 2 numbers a mean reduced to all ranks that have a part of it, one in each direction.
    """
    size = prod(x.shards.lengths[dimension] for dimension in dims)
    summand, whole = _reduced_shards(x.shards, dims)
    work = partial(_mean_square, size, tuple(dims))
    return await verbs.move(await verbs.compute("mean square", work, x, result=summand), whole)


def _reduced_shards(shards: Shards, dims: Sequence[int]) -> tuple[Shards, Shards]:
    """A tensor reduced over some dimensions, to a length of 1: as each rank's summand, and after their sum."""
    lengths = tuple(1 if dimension in dims else length for dimension, length in enumerate(shards.lengths))
    cuts = {dimension: cuts for dimension, cuts in shards.layout.cuts.items() if dimension not in dims}
    summed = {axis: "sum" for axis, dimension in shards.layout.split.items() if dimension in dims}
    return Shards(shards.mesh, lengths, Layout.of(cuts, summed)), Shards(shards.mesh, lengths, Layout.of(cuts))


async def _gather_moments(verbs: Verbs, x: Value, dims: tuple[int, ...], whole: Shards, split: Sequence[str]) -> Value:
    """`moments`, from the mean and the sum of squares of each rank's part."""
    mesh = whole.mesh
    members = whole.mesh.group(verbs.rank, split)
    *kept, _ = whole.lengths
    lengths = (*kept, len(members), 2)
    last = len(kept)
    shards = Shards(mesh, lengths, Layout.of({**whole.layout.cuts, last: tuple(split)}))
    counts = [prod(x.shards.shape(member)[dimension] for dimension in dims) for member in members]
    statistics = await verbs.compute("statistics", lambda x: PartStatistics.apply(_widen(x), dims), x, result=shards)
    statistics = await verbs.move(statistics, Shards(mesh, lengths, whole.layout))
    return await verbs.compute("moments", lambda parts: MergedMoments.apply(parts, counts), statistics, result=whole)


async def normalise(
    verbs: Verbs, x: Value, moments: Value, scale: Sequence[Operand], *, dimensions: Sequence[int], eps: float = EPS
) -> Value:
    """x less the mean, over the deviation, times weight, plus bias.

    Args:
        moments: mean and variance, as the function of that name gives them.
        scale: this rank's pieces of weight and bias, split as x is; the bias may be missing, or both.
        dimensions: those of x that these have.
    """
    return await verbs.compute("norm", partial(_norm, tuple(dimensions), eps), x, moments, *scale, result=x.shards)


async def normalise_by_root(
    verbs: Verbs, x: Value, square: Value, scale: Sequence[Operand], *, dimensions: Sequence[int], eps: float | None
) -> Value:
    """x over the root of its mean square, times weight, as torch's RMSNorm.

    Args:
        square: as `mean_square` gives it.
        scale: this rank's piece of the weight, split as x is; it may be missing.
        dimensions: those of x that this has.
        eps: what is added to the mean square; None: the smallest difference from 1 of the dtype that computes.
    """
    return await verbs.compute("norm", partial(_normalise, tuple(dimensions), eps), x, square, *scale, result=x.shards)


async def drop(verbs: Verbs, x: Value, p: float, key: int) -> Value:
    """Dropout of a value, however it is split: the same elements of the whole are dropped."""
    if p == 0.0:
        return x
    piece = x.shards.pieces(verbs.rank)
    work = partial(dropout_of_piece, p=p, key=key, whole=x.shards.lengths, piece=piece)
    return await verbs.compute("dropout", work, x, result=x.shards)


async def residual(verbs: Verbs, x: Value, y: Value) -> Value:
    """x + y, where x lies: the stream keeps its layout, and y is moved to it."""
    y = await verbs.move(y, x.shards)
    return await verbs.compute("residual", torch.add, x, y, result=x.shards)


def _widen(x: torch.Tensor) -> torch.Tensor:
    """float16 becomes float32, as in torch's norms: the sum of squares of numbers of some hundreds overflows."""
    return x.float() if x.dtype == torch.float16 else x


def _mean(size: int, dims: tuple[int, ...], x: torch.Tensor) -> torch.Tensor:
    return _widen(x).sum(dims, keepdim=True) / size


def _variance(size: int, dims: tuple[int, ...], x: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    return (_widen(x) - mean).square().sum(dims, keepdim=True) / size


def _mean_square(size: int, dims: tuple[int, ...], x: torch.Tensor) -> torch.Tensor:
    return _widen(x).square().sum(dims, keepdim=True) / size


def _normalise(
    dimensions: tuple[int, ...], eps: float | None, x: torch.Tensor, square: torch.Tensor, *scale: torch.Tensor
) -> torch.Tensor:
    """x over the root of a mean square, times weight, which has these dimensions of x."""
    eps = torch.finfo(square.dtype).eps if eps is None else eps
    result = _widen(x) * torch.rsqrt(square + eps)
    for weight in scale:
        result = result * weight.view(
            [length if dimension in dimensions else 1 for dimension, length in enumerate(x.shape)]
        )
    return result.to(x.dtype)


def _norm(
    dimensions: tuple[int, ...], eps: float, x: torch.Tensor, moments: torch.Tensor, *scale: torch.Tensor
) -> torch.Tensor:
    shape = [length if dimension in dimensions else 1 for dimension, length in enumerate(x.shape)]
    weight, bias = [tensor.view(shape) for tensor in scale] + [None] * (2 - len(scale))
    result: torch.Tensor = Normalisation.apply(_widen(x), moments, eps, weight, bias)
    return result.to(x.dtype)
