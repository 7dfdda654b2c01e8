"""The groups of a mesh: this rank's end of the messages along each set of its axes."""

from collections.abc import Sequence

from collectives import Group
from pipelined.errors import UsageError
from pipelined.sharding.mesh import Mesh
from transports import Transport


class MeshGroups:
    """This rank's groups along the axes of a mesh, each made when it is first needed.

    All ranks of the mesh run their moves in one order. Then one channel serves all groups: any two ranks exchange their
    messages in one order, too.

    Args:
        transport: this rank's end of the network.
        channel: of the groups; no other group of these ranks uses it.
        ranks: the transport's ranks in the order of the mesh; None: 0, 1, ...
        algorithm: of every collective, such as "auto"; None: of each the one that a path prices (see `moves`).
    Attributes:
        rank: this rank's number in the mesh.
    Raises:
        UsageError: the ranks are not as many as those of the mesh.
    """

    def __init__(
        self,
        mesh: Mesh,
        transport: Transport,
        channel: int,
        *,
        ranks: Sequence[int] | None = None,
        algorithm: str | None = None,
    ):
        self.mesh, self.transport, self.channel, self.algorithm = mesh, transport, channel, algorithm
        self.ranks = tuple(range(transport.world_size) if ranks is None else ranks)
        if len(self.ranks) != mesh.size:
            counts = f"ranks: {len(self.ranks)}, mesh: {str(mesh)!r} of {mesh.size}"
            raise UsageError(f"another number of ranks than the mesh has ({counts}); give one rank for each place")
        self.rank = self.ranks.index(transport.rank)
        self._groups: dict[tuple[str, ...], Group] = {}

    def along(self, axes: tuple[str, ...]) -> Group:
        """The ranks that differ from this rank on these axes only; the last axis varies fastest."""
        if axes not in self._groups:
            members = [self.ranks[member] for member in self.mesh.group(self.rank, axes)]
            self._groups[axes] = Group(self.transport, members, self.channel)
        return self._groups[axes]
