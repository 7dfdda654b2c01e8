"""Path: the cheapest sequence of moves from one layout of a tensor to another.

Between two meshes of the same ranks, as each operator has one of its own factors, a path is one exchange: the tensor is
split over all ranks on both sides, and each rank sends to each other rank what that rank holds afterwards. What all
ranks hold whole, or as summands, lies alike on any mesh.

On one mesh the search is A*: shortest path over layouts with a lower bound of what is left, the elements that ranks
still have to receive. So it finds a cheapest path among all that `neighbors` has, and looks at few layouts on the way.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import count
from math import prod
from typing import Any

from collectives import Links
from pipelined.errors import UsageError
from pipelined.sharding.collective_moves import AllToAll, Groups, Move
from pipelined.sharding.layout import REDUCTIONS, Layout
from pipelined.sharding.mesh import Mesh
from pipelined.sharding.neighbors import both_summable, candidate_moves, gather
from pipelined.sharding.shards import Shards, common_ranges, length_of

ShardsKey = tuple[Mesh, tuple[int, ...], Layout]
"""What shards are made of, which can be compared."""


@dataclass(frozen=True)
class Path:
    """The moves from one layout of a tensor to another, in order; those that are priced are those that run.

    Args:
        source, target: the tensor before and after.
        steps: its moves, in order.
        replicated: the axes whose ranks compute the same with the tensor (see `Layout.cotangent`).
    """

    source: Shards
    target: Shards
    steps: tuple[Move, ...]
    replicated: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps)) or f"nothing: {self.source.layout}"

    def elements(self, rank: int) -> int:
        return sum(move.elements(rank) for move in self.steps)

    def seconds(self, links: Links, itemsize: int = 4, node: int = 0) -> float:
        """The sum over the moves of the busiest rank's time; see `Move.seconds`."""
        return sum(move.seconds(links, itemsize, node) for move in self.steps)

    @cached_property
    def backward(self) -> "Path":
        """The path of the gradient: from the target's cotangent to the source's.

        Raises:
            UsageError: one of them is a maximum.
        """
        target_cotangent, source_cotangent = (
            Shards(end.mesh, end.lengths, end.layout.cotangent(end.mesh, self.replicated))
            for end in (self.target, self.source)
        )
        return path_between(target_cotangent, source_cotangent, replicated=self.replicated)

    async def run(self, groups: Groups, array: Any) -> Any:
        """This rank's array under the target, from its array under the source, which stays as it is.

        All ranks of the mesh call it, with their paths in one order. A tensor of a GPU goes by way of the host.

        Shapes: `source.shape(rank)` to `target.shape(rank)`; the same array where nothing is to be done.

        Args:
            array: a numpy array or torch tensor.
        Raises:
            ValueError: the shape is another one, or the dtype is refused. BrokenGroup, Mismatch, TransportError: as
            the collectives; the group of that move is then broken. UsageError: the groups are of more or fewer ranks.
        Cost: `elements(rank)` elements sent, and memory of the array before and after each move, twice.
        """
        if tuple(array.shape) != self.source.shape(groups.rank):
            own_shape = self.source.shape(groups.rank)
            facts = f"rank {groups.rank}: {tuple(array.shape)}, under {self.source.layout}: {own_shape}"
            raise ValueError(f"an array of another shape ({facts}); pass the rank's own piece")
        if not self.steps:
            return array
        moved = array.cpu() if hasattr(array, "cpu") else array
        for move in self.steps:
            moved = await move.run(groups, moved)
        return moved.to(array.device) if hasattr(array, "cpu") else moved


def path(
    mesh: Mesh,
    shape: Sequence[int],
    source: Layout | str,
    target: Layout | str,
    *,
    links: Links | None = None,
    itemsize: int = 4,
    replicated: Sequence[str] = (),
) -> Path:
    """The cheapest moves of a tensor of this shape on a mesh, from one layout to another.

    Args:
        source, target: also as text, such as "S1:node P:gpu".
        links, itemsize, replicated: see `path_between`, which raises the same errors.
    """
    ends = Shards(mesh, shape, source), Shards(mesh, shape, target)
    return path_between(*ends, links=links, itemsize=itemsize, replicated=replicated)


def path_between(
    source: Shards, target: Shards, *, links: Links | None = None, itemsize: int = 4, replicated: Sequence[str] = ()
) -> Path:
    """The cheapest moves of a tensor from one layout to another, on one mesh or on two of the same ranks.

    Args:
        links: to find the least time (with `itemsize` bytes an element); None: to find the fewest elements, counting
            those of all ranks. Of equals, the fewest moves.
        replicated: the axes whose ranks compute the same with the tensor (see `Layout.cotangent`).
    Raises:
        UsageError: the shapes differ, or the meshes do and the tensor is not split over all ranks of each.
    """
    if links is not None:
        return _cheapest_path(source, target, links, itemsize, tuple(replicated))
    source_key, target_key = ((shards.mesh, shards.lengths, shards.layout) for shards in (source, target))
    return _cached_path(source_key, target_key, tuple(replicated))


@lru_cache(maxsize=1 << 12)
def _cached_path(source: ShardsKey, target: ShardsKey, replicated: tuple[str, ...]) -> Path:
    """The path with the fewest elements. A step asks for the same ones again, which keep what they have worked out."""
    return _cheapest_path(Shards(*source), Shards(*target), None, 0, replicated)


def _cheapest_path(
    source: Shards, target: Shards, links: Links | None, itemsize: int, replicated: tuple[str, ...]
) -> Path:
    if source.lengths != target.lengths:
        shapes = f"from: {source.lengths}, to: {target.lengths}"
        raise UsageError(f"a move to another shape ({shapes}); compute the new shape first")
    source.mesh.require(replicated)
    if source.mesh != target.mesh and (source.is_uniform or target.is_uniform):
        mesh = target.mesh if source.is_uniform else source.mesh
        uniform_source, uniform_target = (end.uniform_on(mesh) if end.is_uniform else end for end in (source, target))
        steps = path_between(uniform_source, uniform_target, links=links, itemsize=itemsize).steps
    elif source.mesh != target.mesh:
        steps = _exchange(source, target)
    elif links is None:
        steps = _fewest_elements(source.mesh, source.lengths, source.layout, target.layout)
    else:
        steps = _moves(source, target, SecondsPrice(links, itemsize))
    return Path(source, target, steps, replicated)


def _exchange(source: Shards, target: Shards) -> tuple[Move, ...]:
    """The one move between two meshes; none where every rank holds the same piece on both."""
    for shards in (source, target):
        axes = {axis for axis, size in shards.mesh.sizes.items() if size > 1}
        if set(shards.layout.without_trivial_axes(shards.mesh).split) != axes:
            fact = f"a tensor that is not split over all ranks cannot change meshes ({shards})"
            raise UsageError(f"{fact}; split it over all axes")
    exchange = AllToAll(tuple(source.mesh.sizes), source, target)
    return (exchange,) if exchange.max_elements else ()


@lru_cache(maxsize=1 << 12)
def _fewest_elements(mesh: Mesh, shape: tuple[int, ...], source: Layout, target: Layout) -> tuple[Move, ...]:
    return _moves(Shards(mesh, shape, source), Shards(mesh, shape, target), ElementsPrice())


def _moves(source: Shards, target: Shards, price: "ElementsPrice | SecondsPrice") -> tuple[Move, ...]:
    mesh, shape = source.mesh, source.lengths
    # an empty tensor goes as a full one
    lengths = [length if prod(shape) else max(length, mesh.size) for length in shape]
    start, end = (Shards(mesh, lengths, shards.layout.without_trivial_axes(mesh)) for shards in (source, target))
    return tuple(_with_shape(shape, move) for move in _search(start, end, price))


class ElementsPrice:
    """Counts the elements that all ranks send."""

    def move_price(self, move: Move) -> float:
        """The price of one move."""
        return move.all_elements

    def lower_bound(self, elements: int, messages: int, ranks: int) -> float:
        """A lower bound of several moves: of the elements that all ranks send, and of messages one after another."""
        return elements


@dataclass(frozen=True)
class SecondsPrice:
    """Counts the time of the busiest rank in each move."""

    links: Links
    itemsize: int

    def move_price(self, move: Move) -> float:
        return move.seconds(self.links, self.itemsize)

    def lower_bound(self, elements: int, messages: int, ranks: int) -> float:
        if self.links.memory:
            return 0.0  # through memory no message has a price of its own
        return messages * self.links.alpha + elements / ranks * self.itemsize * self.links.beta


def _with_shape(shape: Sequence[int], move: Move) -> Move:
    """The same move of a tensor of another shape."""
    mesh = move.source.mesh
    return type(move)(move.axes, *(Shards(mesh, shape, shards.layout) for shards in (move.source, move.target)))


def _search(start: Shards, end: Shards, price: ElementsPrice | SecondsPrice) -> list[Move]:
    """A*: the cheapest moves; of equals, the fewest."""
    target = end.layout
    serial = count()
    best: dict[Layout, tuple[float, int]] = {start.layout: (0.0, 0)}
    parent: dict[Layout, Move] = {}
    queue: list[tuple[float, int, int, tuple[float, int], Shards]] = [(0.0, 0, 0, (0.0, 0), start)]
    while queue:
        *_, cost, shards = heapq.heappop(queue)
        if shards.layout == target:
            break
        if cost > best[shards.layout]:
            continue
        for move in candidate_moves(shards, target):
            after = move.target
            reached = (cost[0] + price.move_price(move), cost[1] + 1)
            if reached < best.get(after.layout, (math.inf, 0)):
                best[after.layout], parent[after.layout] = reached, move
                steps, messages = lower_bound_moves(after.layout, target, after.mesh)
                bound = reached[0] + price.lower_bound(lower_bound_elements(after, end), messages, after.mesh.size)
                heapq.heappush(queue, (bound, reached[1] + steps, next(serial), reached, after))
    moves = []
    layout = target
    while layout != start.layout:
        moves.append(parent[layout])
        layout = parent[layout].source.layout
    return moves[::-1]


def lower_bound_elements(source: Shards, target: Shards) -> int:
    """A lower bound of the elements that all ranks still send: those that ranks must receive.

    Along an axis that the target sums over, it does not matter which rank of it has an element, so they count as one.
    If c of the q summands of an element remain, q - c are sent to be added up. A sum that w ranks want is sent to
    w - 1 of them.
    """
    mesh, summed = source.mesh, target.layout.partial
    held = Shards(mesh, source.lengths, gather(source.layout, mesh, tuple(summed)))
    partial = source.layout.partial
    summands = prod(mesh.sizes[axis] for axis in partial)
    remaining = prod(mesh.sizes[axis] for axis, op in partial.items() if both_summable(op, summed.get(axis)))
    wanted_elements = kept_elements = 0
    for rank in range(mesh.size):
        if not any(mesh.coordinate(rank, axis) for axis in summed):
            wanted_elements += target.size(rank)
            kept_elements += prod(map(length_of, map(common_ranges, target.pieces(rank), held.pieces(rank))))
    added_up = wanted_elements + prod(source.lengths) * (summands - remaining - 1) if summands > remaining else 0
    return max(wanted_elements - kept_elements, added_up)


def lower_bound_moves(source: Layout, target: Layout, mesh: Mesh) -> tuple[int, int]:
    """Lower bounds of the moves and of the messages one after another that are left.

    Every axis takes a move of its own, but for reductions to all ranks, which several share. Only an all-to-all changes
    the order of the axes that split a dimension before and after.
    """
    steps = messages = 0
    reduced = set()
    for axis, size in mesh.sizes.items():
        before, after = (side.partial.get(axis, "split" if axis in side.split else "") for side in (source, target))
        if before == after:
            continue
        steps += 1
        if before in REDUCTIONS and not after:
            steps -= before in reduced
            messages += 2 * (size - 1)
            reduced.add(before)
        elif before and after not in REDUCTIONS:
            messages += size - 1
    stays = set(source.split) & set(target.split)
    orders = [gather(side, mesh, [axis for axis in side.split if axis not in stays]).cuts for side in (source, target)]
    swapped = orders[0] != orders[1]
    return steps + swapped, messages + swapped
