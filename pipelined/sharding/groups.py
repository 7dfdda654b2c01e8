"""The groups of a rank: its end of the messages along any axes of any mesh."""

from collections.abc import Sequence
from typing import Any

from collectives import Group
from pipelined.errors import UsageError
from pipelined.sharding.collective_moves import CollectiveMove
from pipelined.sharding.mesh import Mesh
from pipelined.sharding.path import Path
from pipelined.sharding.shared_memory import StartedMove
from transports import Transport


class MeshGroups:
    """This rank's groups along the axes of meshes of the same ranks, each made when it is first needed.

    All ranks run their moves in one order. Then one channel serves all groups: any two ranks exchange their messages in
    one order, too. Meshes on which the same ranks lie together have one group of these.

    Args:
        transport: this rank's end of the network.
        channel: of the groups; no other group of these ranks uses it.
        ranks: the transport's ranks in the order of the meshes; None: 0, 1, ...
        through_memory: moves go through the memory that the ranks of their group share, where these do; else, and where
            they share none, by the algorithms that a path prices (see `Move`). Equal on all ranks.
    Attributes:
        rank: this rank's number in the meshes.
    """

    def __init__(
        self, transport: Transport, channel: int, *, ranks: Sequence[int] | None = None, through_memory: bool = True
    ):
        self.transport, self.channel, self._through_memory = transport, channel, through_memory
        self.ranks = tuple(range(transport.world_size) if ranks is None else ranks)
        self.rank = self.ranks.index(transport.rank)
        self._groups: dict[tuple[Mesh, tuple[str, ...]], Group] = {}
        self._by_members: dict[tuple[int, ...], Group] = {}

    def along(self, mesh: Mesh, axes: tuple[str, ...]) -> Group:
        """The ranks that differ from this rank on these axes only; the last axis varies fastest.

        Raises:
            UsageError: the mesh is of another number of ranks.
        """
        if (mesh, axes) not in self._groups:
            if len(self.ranks) != mesh.size:
                counts = f"ranks: {len(self.ranks)}, mesh: {str(mesh)!r} of {mesh.size}"
                raise UsageError(f"another number of ranks than the mesh has ({counts}); give one rank for each place")
            members = tuple(self.ranks[member] for member in mesh.group(self.rank, axes))
            if members not in self._by_members:
                self._by_members[members] = Group(self.transport, members, self.channel)
            self._groups[mesh, axes] = self._by_members[members]
        return self._groups[mesh, axes]

    async def algorithm_for(self, group: Group, priced_algorithm: str) -> str:
        """What a collective of this group runs by: `shared`, or what a path prices. All its ranks call this.

        Raises: as the collectives, when it opens the memory.
        """
        if self._through_memory and group.size > 1 and await group.shared.open() is not None:
            return "shared"
        return priced_algorithm

    async def elements(self, path: Path) -> int:
        """The elements that this rank sends along a path, none through shared memory. All ranks of the mesh call this.

        Raises: as `algorithm_for`.
        """
        elements = 0
        for move in path.steps:
            if isinstance(move, CollectiveMove) and not (await move.open(self)).is_shared:
                elements += move.elements(self.rank)
        return elements

    def start(self, path: Path, array: Any) -> StartedMove | None:
        """Begin to carry a piece, in another thread than the loop's; None: `carry` does it.

        Raises: as `start_publishing`.
        """
        match path.steps:
            case (CollectiveMove() as move,) if self._through_memory and array.device.type == "cpu":
                group = self._groups.get((move.source.mesh, move.axes))
                if group is not None and tuple(array.shape) == path.source.shape(self.rank):
                    return move.start(group, self.rank, array)
        return None

    async def finish(self, move: StartedMove) -> Any:
        """The array of a move that was begun; see `StartedMove.finish`."""
        return await move.finish()

    async def carry(self, path: Path, array: Any) -> Any:
        """This rank's array under the path's target; see `Path.run`."""
        return await path.run(self, array)
