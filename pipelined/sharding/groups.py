"""The groups of a rank: its end of the messages along any axes of any mesh."""

from collections.abc import Sequence
from typing import Any

from collectives import Group
from pipelined.errors import UsageError
from pipelined.sharding.mesh import Mesh
from pipelined.sharding.path import Path
from transports import Transport


class MeshGroups:
    """This rank's groups along the axes of meshes of the same ranks, each made when it is first needed.

    All ranks run their moves in one order. Then one channel serves all groups: any two ranks exchange their messages in
    one order, too.

    Args:
        transport: this rank's end of the network.
        channel: of the groups; no other group of these ranks uses it.
        ranks: the transport's ranks in the order of the meshes; None: 0, 1, ...
        algorithm: of every collective, such as "auto"; None: of each the one that a path prices (see `moves`).
    Attributes:
        rank: this rank's number in the meshes.
    """

    def __init__(
        self,
        transport: Transport,
        channel: int,
        *,
        ranks: Sequence[int] | None = None,
        algorithm: str | None = None,
    ):
        self.transport, self.channel, self.algorithm = transport, channel, algorithm
        self.ranks = tuple(range(transport.world_size) if ranks is None else ranks)
        self.rank = self.ranks.index(transport.rank)
        self._groups: dict[tuple[Mesh, tuple[str, ...]], Group] = {}

    def along(self, mesh: Mesh, axes: tuple[str, ...]) -> Group:
        """The ranks that differ from this rank on these axes only; the last axis varies fastest.

        Raises:
            UsageError: the mesh is of another number of ranks.
        """
        if (mesh, axes) not in self._groups:
            if len(self.ranks) != mesh.size:
                counts = f"ranks: {len(self.ranks)}, mesh: {str(mesh)!r} of {mesh.size}"
                raise UsageError(f"another number of ranks than the mesh has ({counts}); give one rank for each place")
            members = [self.ranks[member] for member in mesh.group(self.rank, axes)]
            self._groups[mesh, axes] = Group(self.transport, members, self.channel)
        return self._groups[mesh, axes]

    async def carry(self, path: Path, array: Any) -> Any:
        """This rank's array under the path's target; see `Path.run`."""
        return await path.run(self, array)
