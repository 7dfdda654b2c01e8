"""A move through memory that the ranks of its group share: each reads from the others' pieces what it holds afterwards.

Pieces are copied into shared memory as they lie, contiguous or not, and each rank writes what it reads to its place in
the moved tensor. So nothing is packed, and there is one way for gathering, exchange and sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from collectives import Group, Publication, publish, start_publishing
from collectives.reduction import Reduction
from pipelined.sharding.shards import Piece, Shards, blocks, common_ranges, empty_like, places_in, put, shape_of, take


@dataclass(frozen=True)
class SharedRead:
    """One move of one rank.

    Args:
        group: of the ranks that the move concerns.
        source, target: the tensor before and after.
        members: the group's ranks as the shards number them.
        op: of a sum, a mean or a maximum of the members' pieces; None: these are parts of one tensor.
    """

    group: Group
    source: Shards
    target: Shards
    members: Sequence[int]
    op: str | None

    async def run(self, array: Any) -> Any | None:
        """This rank's array after the move; None, on all ranks of the group, where pieces are too long.

        Raises: as `publish`. ValueError: the op is not defined for the dtype.
        """
        published = await publish(self.group, array, self._shapes)
        return None if published is None else self.moved(array, published)

    def start(self, array: Any) -> "StartedMove | None":
        """Begin in another thread than the loop's; None where `run` must do it. Raises: as `run`."""
        publication = start_publishing(self.group, array, self._shapes)
        return None if publication is None else StartedMove(self, array, publication)

    @property
    def _shapes(self) -> list[tuple[int, ...]]:
        return [self.source.shape(member) for member in self.members]

    def moved(self, array: Any, published: Sequence[Any]) -> Any:
        """What this rank holds afterwards, from its own array and those of all ranks."""
        own_index = self.group.rank
        pieces = [self.source.pieces(member) for member in self.members]
        arrays = [*published[:own_index], array, *published[own_index + 1 :]]
        target_piece = self.target.pieces(self.members[own_index])
        moved = empty_like(array, shape_of(target_piece))
        if self.op is not None:
            first = 0 if target_piece == pieces[own_index] else own_index  # a sum that several ranks make has one order
            _reduce([*arrays[first:], *arrays[:first]], places_in(pieces[own_index], target_piece), self.op, moved)
            return moved
        for piece, values in zip(pieces, arrays, strict=True):
            shared_piece = tuple(map(common_ranges, piece, target_piece))
            put(moved, places_in(target_piece, shared_piece), _part(values, places_in(piece, shared_piece)))
        return moved


class StartedMove:
    """A move that was begun in another thread than the loop's.

    Attributes:
        moved: this rank's array after the move; None: other ranks were late, and the loop awaits `finish`.
    """

    def __init__(self, read: SharedRead, array: Any, publication: Publication):
        self._read, self._array, self._publication = read, array, publication
        self.moved = None if publication.arrays is None else read.moved(array, publication.arrays)

    async def finish(self) -> Any:
        """Wait for the others. Raises: as `SharedRead.run`."""
        return self._read.moved(self._array, await self._publication.finish())

    def abandon(self, error: BaseException) -> None:
        """Leave the move half done, which breaks its group on this rank."""
        self._publication.abandon(error)


def _part(array: Any, piece: Piece) -> Any:
    """The elements at these indices: a view of them, unless they are several blocks."""
    parts = list(blocks(piece))
    return array[parts[0][0]] if len(parts) == 1 else take(array, piece)


def _reduce(arrays: Sequence[Any], piece: Piece, op: str, into: Any) -> None:
    """Reduce these indices of several arrays, in their order."""
    reduction = Reduction(op, into)
    for block, place in blocks(piece):
        reduction.combine_all([array[block] for array in arrays], into[(*place, ...)])  # a view also without dimensions
    reduction.finish(into, len(arrays))
