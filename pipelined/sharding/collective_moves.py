"""The primitive moves between two layouts: what each rank sends, how long that takes, and how it is done.

A move changes some axes of a layout and leaves the others; the ranks along these axes are its group.

    AllToAll        S → S    each rank sends each other rank what that rank holds afterwards
    AllGather       S → B    by a ring, as the next two
    ReduceScatter   P → S
    ReduceToAll     P → B    an all-reduce
    Slice           B → S    nothing is sent: each rank keeps its part
    Mask            B → P    the first rank keeps the tensor as the only summand that is not 0
    Pad             S → P    each rank's piece among zeros is a summand
    Scale           P → P    a mean is a sum of shares

The segments that price a move are those that it sends. Source: AutoDDL, Table 2 and section 4.3.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import collectives
from collectives import Group, Links, ProblemSize, segment
from collectives.algorithms import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER
from collectives.algorithms.registry import AlgorithmTable
from pipelined.sharding.mesh import Mesh
from pipelined.sharding.shards import Piece, Shards, common_ranges, empty_like, places_in, put, shape_of, take
from pipelined.sharding.shared_memory import SharedRead, StartedMove

GATHERED = 4
"""The most ranks that gather a norm's two statistics from each other, instead of adding up one after the other. Two
ranks send as many numbers as in two sums, four twice as many, in a quarter of a ring's steps."""


class Groups(Protocol):
    """The groups of a rank: `pipelined.sharding.groups.MeshGroups`."""

    rank: int

    def along(self, mesh: Mesh, axes: tuple[str, ...]) -> Group: ...

    async def algorithm_for(self, group: Group, priced: str) -> str: ...


@dataclass(frozen=True)
class OpenedMove:
    """How a group carries a move out.

    Args:
        group: the ranks that the move concerns.
        algorithm: `shared`, for memory that all of them share, or the algorithm of the move's collective.
    """

    group: Group
    algorithm: str

    @property
    def is_shared(self) -> bool:
        return self.algorithm == "shared"


@dataclass(frozen=True)
class Move:
    """One move.

    Args:
        axes: those that change; the last of them varies fastest in the group.
        source, target: the tensor before and after.
    """

    axes: tuple[str, ...]
    source: Shards
    target: Shards
    name: ClassVar[str]

    def __str__(self) -> str:
        return f"{self.name} over {', '.join(self.axes)}: {self.source.layout} -> {self.target.layout}"

    def group(self, rank: int) -> tuple[int, ...]:
        """The ranks with which the rank exchanges messages, itself included."""
        return self.source.mesh.group(rank, self.axes)

    @cached_property
    def group_size(self) -> int:
        return math.prod(self.source.mesh.sizes[axis] for axis in self.axes)

    def elements(self, rank: int) -> int:
        """The elements that the rank sends."""
        return 0

    @cached_property
    def max_elements(self) -> int:
        """The elements that the busiest rank sends."""
        return max(map(self.elements, range(self.source.mesh.size)))

    @cached_property
    def all_elements(self) -> int:
        """The elements that all ranks send."""
        return sum(map(self.elements, range(self.source.mesh.size)))

    def seconds(self, links: Links, itemsize: int = 4, node: int = 0) -> float:
        """The time of the busiest rank.

        Args:
            links: between any two ranks.
            itemsize: bytes of an element.
            node: ranks of a node, between which `links.far` counts; 0: all ranks are on one.
        """
        return 0.0

    async def run(self, groups: Groups, array: Any) -> Any:
        """This rank's array after the move, from the one before it, which stays as it is.

        Raises:
            ValueError: the op is not defined for the dtype. BrokenGroup, Mismatch, TransportError: as the collectives.
        """
        raise NotImplementedError


class CollectiveMove(Move):
    """A move by a collective."""

    algorithm: ClassVar[str]
    table: ClassVar[AlgorithmTable[Any]]
    passes: ClassVar[int] = 1
    """How often a rank sends its share of the array."""

    def seconds(self, links: Links, itemsize: int = 4, node: int = 0) -> float:
        """The closed form of the algorithm, for an array of which each rank would send what the busiest one sends.

        Ranks of one node move at the prices of its memory, if the links have any.
        """
        forms = self.table.forms(self.algorithm)
        ranks = self.group_size
        if ranks == 1:
            return 0.0
        nbytes = round(self.max_elements * itemsize * ranks / (ranks - 1) / self.passes)

        def seconds_on(nodes: tuple[int, ...]) -> float:
            if links.memory is not None and not any(nodes):
                return links.memory.seconds(self.name, self.longest * itemsize)
            return forms.seconds(ProblemSize(nodes, nbytes), links)

        return max(map(seconds_on, self._nodes(node)))

    @cached_property
    def longest(self) -> int:
        """The elements of the longest piece before or after."""
        return max(shards.size(rank) for shards in (self.source, self.target) for rank in range(shards.mesh.size))

    def _nodes(self, node: int) -> set[tuple[int, ...]]:
        """For every group: for each of its ranks, the place in the group of the first rank on the same node."""
        if not node:
            return {(0,) * self.group_size}
        groups = {self.group(rank) for rank in range(self.source.mesh.size)}
        nodes_of_groups = [[rank // node for rank in group] for group in groups]
        return {tuple(map(nodes.index, nodes)) for nodes in nodes_of_groups}

    async def open(self, groups: Groups) -> OpenedMove:
        """The move's group with its algorithm; opens the memory that its ranks share."""
        group = groups.along(self.source.mesh, self.axes)
        return OpenedMove(group, await groups.algorithm_for(group, self.algorithm))

    async def run(self, groups: Groups, array: Any) -> Any:
        """Through memory that the ranks of the group share, where pieces fit into it, else by the collective."""
        opened = await self.open(groups)
        if opened.is_shared:
            moved = await self._shared_read(opened.group, groups.rank).run(array)
            if moved is not None:
                return moved
        return await self._collect(opened.group, opened.algorithm, groups.rank, array)

    def start(self, group: Group, rank: int, array: Any) -> StartedMove | None:
        """Begin the move in another thread than the loop's; None where `run` must do it. Raises: as `run`."""
        return self._shared_read(group, rank).start(array)

    def _shared_read(self, group: Group, rank: int) -> SharedRead:
        return SharedRead(group, self.source, self.target, self.group(rank), self.op)

    @property
    def op(self) -> str | None:
        """The reduction of a partial tensor; None: the tensor is split."""
        return self.source.layout.partial.get(self.axes[0])

    async def _collect(self, group: Group, algorithm: str, rank: int, array: Any) -> Any:
        """The move by its collective."""
        raise NotImplementedError


class AllToAll(CollectiveMove):
    name, algorithm, table = "all_to_all", "pairwise", ALL_TO_ALL

    def elements(self, rank: int) -> int:
        """All that the rank holds and does not keep: afterwards one rank of the group has each element."""
        return self.source.size(rank) - self.overlap(rank, rank)

    def overlap(self, sender: int, receiver: int) -> int:
        """The elements that the sender holds before, and the receiver afterwards."""
        return math.prod(shape_of(_intersection(self.source.pieces(sender), self.target.pieces(receiver))))

    async def _collect(self, group: Group, algorithm: str, rank: int, array: Any) -> Any:
        source_piece, target_piece = self.source.pieces(rank), self.target.pieces(rank)
        moved = empty_like(array, self.target.shape(rank))
        members = self.group(rank)
        outgoing_pieces = [_intersection(source_piece, self.target.pieces(member)) for member in members]
        incoming_pieces = [_intersection(self.source.pieces(member), target_piece) for member in members]
        outgoing = [take(array, places_in(source_piece, piece)) for piece in outgoing_pieces]
        incoming = [empty_like(array, shape_of(piece)) for piece in incoming_pieces]
        await collectives.all_to_all(group, outgoing, incoming, algorithm)
        for piece, values in zip(incoming_pieces, incoming, strict=True):
            put(moved, places_in(target_piece, piece), values)
        return moved


class AllGather(CollectiveMove):
    name, algorithm, table = "all_gather", "ring", ALL_GATHER

    def elements(self, rank: int) -> int:
        """All but the piece of the next rank, which is the last that a ring brings here."""
        members = self.group(rank)
        next_rank = members[(members.index(rank) + 1) % len(members)]
        return self.target.size(rank) - self.source.size(next_rank)

    async def _collect(self, group: Group, algorithm: str, rank: int, array: Any) -> Any:
        members = self.group(rank)
        target_piece = self.target.pieces(rank)
        flat = empty_like(array, (self.target.size(rank),))
        lengths = [self.source.size(member) for member in members]
        segments = _cut(flat, lengths)
        segments[members.index(rank)][...] = array.reshape(-1)
        await collectives.all_gather(group, flat, lengths, algorithm)
        gathered = empty_like(array, self.target.shape(rank))
        for member, values in zip(members, segments, strict=True):
            places = places_in(target_piece, self.source.pieces(member))
            put(gathered, places, values.reshape(self.source.shape(member)))
        return gathered


class ReduceScatter(CollectiveMove):
    name, algorithm, table = "reduce_scatter", "ring", REDUCE_SCATTER

    def elements(self, rank: int) -> int:
        """All but the rank's own piece."""
        return self.source.size(rank) - self.target.size(rank)

    async def _collect(self, group: Group, algorithm: str, rank: int, array: Any) -> Any:
        members = self.group(rank)
        source_piece = self.source.pieces(rank)
        flat = empty_like(array, (self.source.size(rank),))
        lengths = [self.target.size(member) for member in members]
        for member, values in zip(members, _cut(flat, lengths), strict=True):
            values[...] = take(array, places_in(source_piece, self.target.pieces(member))).reshape(-1)
        assert self.op is not None
        reduced = await collectives.reduce_scatter(group, flat, self.op, lengths, algorithm)
        moved = empty_like(array, self.target.shape(rank))  # else it would keep the memory of all segments
        moved[...] = reduced.reshape(moved.shape)
        return moved


class ReduceToAll(CollectiveMove):
    name, algorithm, table, passes = "all_reduce", "ring", ALL_REDUCE, 2

    def elements(self, rank: int) -> int:
        """Each segment of the flat array twice, but the rank's own and the next one's once."""
        size = self.source.size(rank)
        position = self.group(rank).index(rank)
        spared_segments = (segment(size, self.group_size, part % self.group_size) for part in (position, position + 1))
        return 2 * size - sum(high - low for low, high in spared_segments)

    async def _collect(self, group: Group, algorithm: str, rank: int, array: Any) -> Any:
        reduced = empty_like(array, tuple(array.shape))
        reduced[...] = array
        assert self.op is not None
        await collectives.all_reduce(group, reduced, self.op, algorithm)
        return reduced


def _intersection(first: Piece, second: Piece) -> Piece:
    return tuple(map(common_ranges, first, second))


def _cut(flat: Any, lengths: list[int]) -> list[Any]:
    """Views of consecutive segments of these lengths."""
    views = []
    low = 0
    for length in lengths:
        views.append(flat[low : low + length])
        low += length
    return views
