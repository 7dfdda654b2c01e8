"""Rounds between clusters: each slice of the model is averaged over the nodes that hold it, one of every cluster.

A round is whole or nothing: the rings leave every node with the average of its layers, then all confirm, then one
transaction makes the round stand, and only then is it applied. So all clusters go on with the same bits.

Optimizer moments stay where they are: a difference of second moments could make one negative. Imports torch.

Source: Ravnest, section 3.2 and Algorithm 2 (parallel multi-ring averaging).
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

import torch
from torch import nn

from collectives.clusters import Rings, Share
from pipelined.actors.agree import gather
from pipelined.actors.executor import Executor
from pipelined.ravnest.records import Clusters
from pipelined.training.model import Model
from transports import Transport

CHANNEL = 0
"""Of the first ring."""


class RoundLog(Protocol):
    """Where the rounds of some clusters stand: the directory."""

    async def write(self, number: int) -> None:
        """Make a round stand; the next after the one that stands."""

    async def stands(self, number: int) -> None:
        """Wait until a round stands."""


def shares_of(clusters: Clusters, sizes: Iterable[int]) -> list[list[Share]]:
    """The elements that each node holds; ranks count the nodes of all clusters, cluster by cluster.

    Args:
        sizes: parameters of each layer.
    """
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    shares, rank = [], 0
    for row in clusters.rows:
        shares.append([Share(rank + at, starts[place.first], starts[place.end]) for at, place in enumerate(row)])
        rank += len(row)
    return shares


def layer_sizes(model: Model, dtype: torch.dtype) -> list[int]:
    """The parameters of each layer. Cost: no memory, for a model of any size."""
    layers = [model.build(range(layer, layer + 1), dtype, "meta", None) for layer in range(model.layers)]
    return [sum(parameter.numel() for parameter in layer.parameters()) for layer in layers]


class Rounds:
    """One node's part in the rounds of its clusters.

    Args:
        world: of the nodes of all clusters.
        parameters: of this node, in the order of its layers; they are replaced in place.
    """

    def __init__(
        self,
        world: Transport,
        clusters: Clusters,
        model: Model,
        *,
        parameters: Mapping[str, nn.Parameter],
        executor: Executor,
        log: RoundLog,
    ):
        self._world, self._executor, self._log = world, executor, log
        self._parameters = list(parameters.values())
        self._rings = Rings(world, shares_of(clusters, layer_sizes(model, self._parameters[0].dtype)), CHANNEL)
        self.done = 0

    async def average(self) -> None:
        """Take part in the next round: afterwards this node's parameters are the mean of all clusters'.

        Every node of every cluster calls this the same number of times; nothing is computed meanwhile.

        Cost: with C clusters 2(C-1)/C of its bytes are sent, and twice its bytes are held.
        """
        snapshot, _, _ = await self._executor.run("snapshot", self._snapshot)
        await self._rings.all_reduce([snapshot])
        self.done += 1
        await gather(self._world, f"round {self.done}", True)
        if self._world.rank == 0:
            await self._log.write(self.done)
        await self._log.stands(self.done)
        await self._executor.run("average", lambda: self._replace(snapshot))

    @torch.no_grad()
    def _snapshot(self) -> torch.Tensor:
        """A copy of all parameters, flat, on the host."""
        return torch.cat([parameter.detach().reshape(-1).cpu() for parameter in self._parameters])

    @torch.no_grad()
    def _replace(self, average: torch.Tensor) -> None:
        pieces = average.split([parameter.numel() for parameter in self._parameters])
        for parameter, piece in zip(self._parameters, pieces, strict=True):
            parameter.copy_(piece.view_as(parameter))
