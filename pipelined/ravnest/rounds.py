"""Rounds between clusters: each slice of the model is averaged over the nodes that hold it, one of every cluster.

A round is whole or nothing: the rings leave every node with the average of its layers, then all confirm, then one
transaction makes the round stand, and only then is it applied.

Optimizer moments stay where they are: a difference of second moments could make one negative. Imports torch.

Source: Ravnest, section 3.2 and Algorithm 2 (parallel multi-ring averaging).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import torch
from torch import nn

from collectives.clusters import Rings, Share
from pipelined.actors.agree import gather
from pipelined.actors.executor import Executor
from pipelined.ravnest.records import Clusters
from pipelined.ravnest.saving import StageSaver
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


@torch.no_grad()
def flat_copy(parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    """A copy of all parameters, flat, on the host."""
    return torch.cat([parameter.detach().reshape(-1).cpu() for parameter in parameters])


class Rounds:
    """One node's part in the rounds of its clusters.

    Args:
        world: of the nodes of all clusters.
        parameters: of this node, in the order of its layers; they are replaced in place.
        saver: saves averages; None: they are not saved.
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
        saver: StageSaver | None = None,
    ):
        self._saver = saver
        self._world, self._executor, self._log = world, executor, log
        self._parameters = list(parameters.values())
        self._rings = Rings(world, shares_of(clusters, layer_sizes(model, self._parameters[0].dtype)), CHANNEL)
        self.done = 0

    async def average(self, weight: float | None = None) -> None:
        """Take part in the next round, and wait for it: afterwards this node's parameters are the average.

        Every node of every cluster calls this the same number of times; nothing is computed meanwhile.

        Args:
            weight: of this cluster; None: that of each is the same.
        Cost: with C clusters 2(C-1)/C of its bytes are sent, and twice its bytes are held.
        """
        await self.begin()
        await self.replace(await self.reduce(await self.snapshot(), weight))

    async def begin(self) -> None:
        """Before the snapshot of the next round: copy what is saved beside the average, if that round is saved."""
        if self._saver is not None:
            await self._saver.begin(self.done + 1)

    async def snapshot(self) -> torch.Tensor:
        """A copy of all parameters, flat, on the host."""
        copy, _, _ = await self._executor.run("snapshot", lambda: flat_copy(self._parameters))
        return copy

    async def reduce(self, snapshot: torch.Tensor, weight: float | None = None) -> torch.Tensor:
        """Take part in the next round with this snapshot, which becomes the average; returns when the round stands."""
        if weight is not None:
            snapshot *= weight
        await self._rings.all_reduce([snapshot], "mean" if weight is None else "sum")
        self.done += 1
        await gather(self._world, f"round {self.done}", True)
        if self._world.rank == 0:
            await self._log.write(self.done)
        await self._log.stands(self.done)
        if self._saver is not None:
            await self._saver.save(self.done, snapshot)
        return snapshot

    async def replace(self, average: torch.Tensor) -> None:
        """Set the parameters to the average."""
        await self._executor.run("average", lambda: self._each(average, torch.Tensor.copy_))

    async def add(self, average: torch.Tensor, snapshot: torch.Tensor) -> None:
        """Add the difference of an average and a snapshot to the parameters; both are used up."""
        await self._executor.run("average", lambda: self._each(average.sub_(snapshot), torch.Tensor.add_))

    @torch.no_grad()
    def _each(self, flat: torch.Tensor, change: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
        pieces = flat.split([parameter.numel() for parameter in self._parameters])
        for parameter, piece in zip(self._parameters, pieces, strict=True):
            change(parameter, piece.view_as(parameter).to(parameter.device))
