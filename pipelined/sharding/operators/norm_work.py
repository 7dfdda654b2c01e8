"""The part of a norm that one rank computes: its own statistics, the merging with others', and the normalisation.

Each is one node of autograd with a gradient in closed form: written out in torch's operators, a norm passes over its
input eight times forward and fifteen times back, and keeps it three times; here three and eight times, kept once.

Shapes: a *mean* has those of x, with 1 in the dimensions over which it is taken; *moments* end with 2, mean and
variance, and statistics with (parts, 2), the mean of each part and the sum of squares of what is left.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch


class PartStatistics(torch.autograd.Function):
    """The statistics of one part, (..., 1, 2); zeros of no elements. Arguments: x, the dimensions."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
        count = max(1, prod(x.shape[dimension] for dimension in dims))
        mean = x.sum(dims, keepdim=True) / count
        ctx.save_for_backward(x, mean)
        ctx.count = count
        return torch.stack([mean, (x - mean).square_().sum(dims, keepdim=True)], -1).unsqueeze(-2)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        x, mean = ctx.saved_tensors
        mean_gradient, squares_gradient = gradient[..., 0, 0], gradient[..., 0, 1]
        return (x - mean).mul_(2 * squares_gradient).add_(mean_gradient / ctx.count), None


class MergedMoments(torch.autograd.Function):
    """The moments of all parts, from their statistics. Arguments: these, and the elements of each part.

    Source: Chan, Golub and LeVeque, 1979.
    """

    @staticmethod
    def forward(ctx: Any, statistics: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        total = sum(counts)
        weights = statistics.new_tensor(counts)
        means, squares = statistics.unbind(-1)
        mean = (means * weights).sum(-1, keepdim=True) / total
        distances = means - mean
        variance = (squares + weights * distances.square()).sum(-1, keepdim=True) / total
        ctx.save_for_backward(distances, weights)
        ctx.total = total
        return torch.cat([mean, variance], -1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        distances, weights = ctx.saved_tensors
        mean_gradient, variance_gradient = (gradient / ctx.total).split(1, -1)
        means_gradient = weights * (mean_gradient + 2 * variance_gradient * distances)
        return torch.stack([means_gradient, variance_gradient.expand_as(means_gradient)], -1), None


class Normalisation(torch.autograd.Function):
    """x less the mean, over the deviation, times weight, plus bias.

    Arguments: x, moments, what is added to the variance, weight and bias, or None, in shapes that broadcast to x's.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, moments: torch.Tensor, eps: float, *scale: torch.Tensor | None
    ) -> torch.Tensor:
        weight, bias = scale
        mean, variance = moments.unbind(-1)
        inverse = torch.rsqrt(variance + eps)
        normed = (x - mean).mul_(inverse)
        ctx.save_for_backward(normed, inverse, weight)
        ctx.bias_shape = None if bias is None else bias.shape
        result = normed if weight is None else normed * weight
        if bias is None:
            return result
        return result + bias if result is normed else result.add_(bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        normed, inverse, weight = ctx.saved_tensors
        *_, needs_weight, needs_bias = ctx.needs_input_grad
        products = gradient * normed
        bias_gradient = gradient.sum_to_size(ctx.bias_shape) if needs_bias else None
        weight_gradient = products.sum_to_size(weight.shape) if needs_weight else None
        if weight is not None:
            gradient = gradient * weight
            products = products * weight if needs_weight else products.mul_(weight)
        mean_gradient = -inverse * gradient.sum_to_size(inverse.shape)
        variance_gradient = -0.5 * inverse.square() * products.sum_to_size(inverse.shape)
        moments_gradient = torch.stack([mean_gradient, variance_gradient], -1)
        return gradient * inverse, moments_gradient, None, weight_gradient, bias_gradient
