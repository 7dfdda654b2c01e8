"""The sums of gradients over the axes on which parameters are broadcast, after the microbatches of a step."""

from collections.abc import Iterable

import torch

from pipelined.sharding.operators.routes import Route, route
from pipelined.sharding.operators.tape import Carrier
from pipelined.sharding.shards import Shards


def sum_route(parameter: Shards) -> Route:
    """The moves of a parameter's gradient: from a partial sum on the axes that do not split it, to its own layout."""
    summand = Shards(parameter.mesh, parameter.lengths, parameter.layout.cotangent(parameter.mesh))
    return route(summand, parameter)


async def sum_gradients(network: Carrier, parameters: Iterable[tuple[torch.Tensor, Shards]]) -> None:
    """Sum the gradients of this rank's pieces; all ranks give them in one order.

    Args:
        parameters: the pieces, with how they lie.
    Cost: 2 (p0-1)/p0 · kn/(p1·p2) elements for a multiplication's weight.
    """
    for piece, shards in parameters:
        gradient = torch.zeros_like(piece) if piece.grad is None else piece.grad
        piece.grad = await network.carry(sum_route(shards), gradient)
