"""What is done to the residual stream, however it is split: the norm, and dropout and sum at the end of a residual.

The norm takes two passes, the mean and then the mean square of what is left, because the difference of a sum of squares
and a squared sum loses half of the digits. Each pass reduces one number a token to all ranks of the token, in the
forward and in the backward.
"""

from functools import partial
from math import prod

import torch

from pipelined.random.mask import dropout
from pipelined.sharding.operators.matmul import LEAD
from pipelined.sharding.operators.verbs import Operand, Reader, Value
from pipelined.sharding.shards import Shards

EPS = 1e-5
"""What is added to the variance, as torch's LayerNorm does."""


async def layer_norm(run: Reader, x: Value, weight: Operand, bias: Operand) -> Value:
    """Each token less its mean, over its deviation, times weight, plus bias.

    Args:
        x: (B, T, *token), however its tokens are split.
        weight, bias: this rank's pieces of tensors of the token's shape, split as x is.
    Cost: 4 numbers a token reduced to all ranks of the token, 2 in each direction.
    """
    shape = x.shards.lengths
    rows = {dimension: cuts for dimension, cuts in x.shards.layout.cuts.items() if dimension < LEAD}
    split = [axis for axis, dimension in x.shards.layout.split.items() if dimension >= LEAD]
    layout = type(x.shards.layout)
    whole = Shards(x.shards.mesh, shape[:LEAD], layout.of(rows))
    summand = Shards(x.shards.mesh, shape[:LEAD], layout.of(rows, dict.fromkeys(split, "sum")))
    size = prod(shape[LEAD:])
    mean = await run.move(await run.compute("mean", partial(_mean, size), x, result=summand), whole)
    square = await run.compute("variance", partial(_variance, size), x, mean, result=summand)
    variance = await run.move(square, whole)
    return await run.compute("norm", _normed, x, mean, variance, weight, bias, result=x.shards)


async def drop(run: Reader, x: Value, p: float, key: int) -> Value:
    """Dropout of a value, however it is split: the same elements of the whole are dropped."""
    if p == 0.0:
        return x
    piece = x.shards.pieces(run.rank)
    work = partial(dropout, p=p, key=key, whole=x.shards.lengths, piece=piece)
    return await run.compute("dropout", work, x, result=x.shards)


async def residual(run: Reader, x: Value, y: Value) -> Value:
    """x + y, where x lies: the stream keeps its layout, and y is moved to it."""
    y = await run.move(y, x.shards)
    return await run.compute("residual", torch.add, x, y, result=x.shards)


def _mean(size: int, x: torch.Tensor) -> torch.Tensor:
    return x.flatten(LEAD).sum(LEAD) / size


def _variance(size: int, x: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    return (x.flatten(LEAD) - mean[..., None]).square().sum(LEAD) / size


def _normed(
    x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    mean, variance = (each.view(each.shape + (1,) * (x.dim() - LEAD)) for each in (mean, variance))
    return (x - mean) * torch.rsqrt(variance + EPS) * weight + bias
