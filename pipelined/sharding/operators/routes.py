"""Routes: how a tensor gets from its shards on one mesh to shards on another mesh of the same ranks.

Each operator has a mesh of its own factors, on which the same ranks stand in the same order. On one mesh a route is a
path. Between two meshes the tensor must be split over all ranks on both sides; each rank then sends to each other rank
what that rank holds afterwards, which is nothing where the pieces are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from collectives import Links
from pipelined.errors import UsageError
from pipelined.sharding.groups import MeshGroups
from pipelined.sharding.mesh import Mesh
from pipelined.sharding.moves import AllToAll, Step
from pipelined.sharding.path import path
from pipelined.sharding.shards import Shards
from transports import Transport


class Meshes:
    """This rank's groups on each mesh of a stage, made when they are first needed; one channel serves them all.

    Args:
        transport: this rank's end of the network.
        channel: of the stage's moves.
        ranks: the transport's ranks in the order of the meshes; None: 0, 1, ...
    """

    def __init__(self, transport: Transport, channel: int, ranks: Sequence[int] | None = None):
        self.transport, self.channel = transport, channel
        self.ranks = tuple(range(transport.world_size) if ranks is None else ranks)
        self.rank = self.ranks.index(transport.rank)
        self._groups: dict[Mesh, MeshGroups] = {}

    async def carry(self, route: "Route", array: Any) -> Any:
        """This rank's piece under the route's target, from its torch tensor under the source, which stays as it is.

        A tensor of a GPU goes by way of the host. Raises: as the collectives.
        """
        moved = array.cpu() if route.steps else array
        for step in route.steps:
            moved = await step.run(self._on(step.source.mesh), moved)
        return moved.to(array.device)

    def _on(self, mesh: Mesh) -> MeshGroups:
        if mesh not in self._groups:
            self._groups[mesh] = MeshGroups(mesh, self.transport, self.channel, ranks=self.ranks)
        return self._groups[mesh]


@dataclass(frozen=True)
class Route:
    """The moves from one tensor's shards to others; those that are priced are those that run.

    Args:
        source, target: the tensor before and after.
        steps: the moves, in order.
        replicated: the axes whose ranks compute the same with the moved tensor.
    """

    source: Shards
    target: Shards
    steps: tuple[Step, ...]
    replicated: tuple[str, ...] = ()

    def elements(self, rank: int) -> int:
        """The elements that the rank sends."""
        return sum(step.elements(rank) for step in self.steps)

    def seconds(self, links: Links, itemsize: int) -> float:
        """The sum over the moves of the busiest rank's time."""
        return sum(step.seconds(links, itemsize) for step in self.steps)

    @cached_property
    def backward(self) -> "Route":
        """The route of the gradient, from the target's cotangent to the source's."""
        ends = [
            Shards(end.mesh, end.lengths, end.layout.cotangent(end.mesh, self.replicated))
            for end in (self.target, self.source)
        ]
        return route(ends[0], ends[1], self.replicated)


def route(source: Shards, target: Shards, replicated: Sequence[str] = ()) -> Route:
    """The moves from one tensor's shards to others.

    Raises:
        UsageError: the shapes differ, or the meshes do and the tensor is not split over all ranks of each.
    """
    if source.lengths != target.lengths:
        shapes = f"from: {source.lengths}, to: {target.lengths}"
        raise UsageError(f"a move to another shape ({shapes}); compute the new shape first")
    if source.mesh == target.mesh:
        steps = _steps(source.mesh, source.lengths, str(source.layout), str(target.layout))
        return Route(source, target, steps, tuple(replicated))
    for shards in (source, target):
        if set(shards.layout.on(shards.mesh).split) != {axis for axis, size in shards.mesh.sizes.items() if size > 1}:
            raise UsageError(
                f"a tensor that is not split over all ranks cannot change meshes ({shards}); split it over all axes"
            )
    exchange = AllToAll(tuple(source.mesh.sizes), source, target)
    return Route(source, target, (exchange,) if exchange.most_elements else (), tuple(replicated))


@lru_cache(maxsize=1 << 12)
def _steps(mesh: Mesh, lengths: tuple[int, ...], source: str, target: str) -> tuple[Step, ...]:
    return path(mesh, lengths, source, target).steps
