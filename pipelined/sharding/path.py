"""Path: the cheapest sequence of moves from one layout of a tensor to another.

The search is A*: shortest path over layouts with a lower bound of what is left, the elements that ranks still have to
receive. So it finds a cheapest path among all that `leads` allows, and looks at few layouts on the way.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from math import prod
from typing import Any

from collectives import Links
from pipelined.sharding.groups import MeshGroups
from pipelined.sharding.layout import OPS, Layout
from pipelined.sharding.leads import alike, gather, moves_towards
from pipelined.sharding.mesh import Mesh
from pipelined.sharding.moves import Step
from pipelined.sharding.shards import Shards, common, length_of


@dataclass(frozen=True)
class Path:
    """The moves from one layout of a tensor to another, in order; those that are priced are those that run.

    Args:
        source, target: the tensor before and after.
        steps: the moves.
        replicated: the axes whose ranks compute the same with the tensor (see `Layout.cotangent`).
    """

    source: Shards
    target: Shards
    steps: tuple[Step, ...]
    replicated: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps)) or f"nothing: {self.source.layout}"

    def elements(self, rank: int) -> int:
        """The elements that the rank sends."""
        return sum(step.elements(rank) for step in self.steps)

    def seconds(self, links: Links | Mapping[str, Links], itemsize: int = 4) -> float:
        """The sum over the moves of the busiest rank's time; see `Step.seconds`."""
        return sum(step.seconds(links, itemsize) for step in self.steps)

    @cached_property
    def backward(self) -> "Path":
        """The path of the gradient: from the target's cotangent to the source's.

        Raises:
            UsageError: one of them is a maximum.
        """
        mesh, layouts = self.source.mesh, (self.target.layout, self.source.layout)
        back, forth = (layout.cotangent(mesh, self.replicated) for layout in layouts)
        return path(mesh, self.source.lengths, back, forth, replicated=self.replicated)

    async def run(self, groups: MeshGroups, array: Any) -> Any:
        """This rank's array under the target, from its array under the source, which stays as it is.

        All ranks of the mesh call it, with their paths in one order.

        Shapes: `source.shape(rank)` to `target.shape(rank)`; the same array where nothing is to be done.

        Args:
            array: a numpy array or CPU torch tensor.
        Raises:
            ValueError: the shape is another one, or the dtype is refused. BrokenGroup, Mismatch, TransportError: as
            the collectives; the group of that move is then broken.
        Cost: `elements(rank)` elements sent, and memory of the array before and after each move, twice.
        """
        if tuple(array.shape) != self.source.shape(groups.rank):
            own = self.source.shape(groups.rank)
            facts = f"rank {groups.rank}: {tuple(array.shape)}, under {self.source.layout}: {own}"
            raise ValueError(f"an array of another shape ({facts}); pass the rank's own piece")
        for step in self.steps:
            array = await step.run(groups, array)
        return array


def path(
    mesh: Mesh,
    shape: Sequence[int],
    source: Layout | str,
    target: Layout | str,
    *,
    links: Links | Mapping[str, Links] | None = None,
    itemsize: int = 4,
    replicated: Sequence[str] = (),
) -> Path:
    """The cheapest moves from one layout to another.

    Args:
        shape: of the whole tensor.
        links: to find the least time (with `itemsize` bytes an element); None: to find the fewest elements, counting
            those of all ranks. Of equals, the fewest moves.
        replicated: the axes whose ranks compute the same with the tensor (see `Layout.cotangent`).
    Raises:
        UsageError: a layout does not fit the mesh or the shape.
    """
    start, end = (Shards(mesh, shape, layout) for layout in (source, target))
    mesh.require(replicated)
    full = [length if prod(shape) else max(length, mesh.size) for length in shape]  # an empty tensor goes as a full one
    first, last = (Shards(mesh, full, each.layout.on(mesh)) for each in (start, end))
    price = Elements() if links is None else Seconds(links, itemsize)
    steps = tuple(_over(shape, move) for move in _search(first, last, price))
    return Path(start, end, steps, tuple(replicated))


class Elements:
    """Counts the elements that all ranks send."""

    def of(self, move: Step) -> float:
        """The price of one move."""
        return move.all_elements

    def least(self, elements: int, messages: int, ranks: int) -> float:
        """A lower bound of several moves: of the elements that all ranks send, and of messages one after another."""
        return elements


@dataclass(frozen=True)
class Seconds:
    """Counts the time of the busiest rank in each move."""

    links: Links | Mapping[str, Links]
    itemsize: int

    def of(self, move: Step) -> float:
        return move.seconds(self.links, self.itemsize)

    def least(self, elements: int, messages: int, ranks: int) -> float:
        each = list(self.links.values()) if isinstance(self.links, Mapping) else [self.links]
        alpha, beta = min(link.alpha for link in each), min(link.beta for link in each)
        return messages * alpha + elements / ranks * self.itemsize * beta


def _over(shape: Sequence[int], move: Step) -> Step:
    """The same move of a tensor of another shape."""
    mesh = move.source.mesh
    return type(move)(move.axes, *(Shards(mesh, shape, each.layout) for each in (move.source, move.target)))


def _search(first: Shards, last: Shards, price: Elements | Seconds) -> list[Step]:
    """A*: the cheapest moves; of equals, the fewest."""
    target, serial = last.layout, count()
    best: dict[Layout, tuple[float, int]] = {first.layout: (0.0, 0)}
    came: dict[Layout, Step] = {}
    queue: list[tuple[float, int, int, tuple[float, int], Shards]] = [(0.0, 0, 0, (0.0, 0), first)]
    while queue:
        *_, cost, here = heapq.heappop(queue)
        if here.layout == target:
            break
        if cost > best[here.layout]:
            continue
        for move in moves_towards(target, here):
            after, reached = move.target, (cost[0] + price.of(move), cost[1] + 1)
            if reached < best.get(after.layout, (math.inf, 0)):
                best[after.layout], came[after.layout] = reached, move
                steps, messages = still_needed(after.layout, target, after.mesh)
                least = reached[0] + price.least(missing(after, last), messages, after.mesh.size)
                heapq.heappush(queue, (least, reached[1] + steps, next(serial), reached, after))
    moves, layout = [], target
    while layout != first.layout:
        moves.append(came[layout])
        layout = came[layout].source.layout
    return moves[::-1]


def missing(here: Shards, target: Shards) -> int:
    """A lower bound of the elements that all ranks still send: those that ranks must receive.

    Along an axis that the target sums over, it does not matter which rank of it has an element, so they count as one.
    Of q summands of an element of which c remain, q - c are sent to be added up. A sum that w ranks want is sent to
    w - 1 of them.
    """
    mesh, summed = here.mesh, target.layout.partial
    have = Shards(mesh, here.lengths, gather(here.layout, mesh, tuple(summed)))
    partial = here.layout.partial
    summands = prod(mesh.sizes[axis] for axis in partial)
    remain = prod(mesh.sizes[axis] for axis, op in partial.items() if alike(op, summed.get(axis)))
    wanted = kept = 0
    for rank in range(mesh.size):
        if not any(mesh.coordinate(rank, axis) for axis in summed):
            wanted += target.size(rank)
            kept += prod(map(length_of, map(common, target.pieces(rank), have.pieces(rank))))
    added_up = wanted + prod(here.lengths) * (summands - remain - 1) if summands > remain else 0
    return max(wanted - kept, added_up)


def still_needed(here: Layout, target: Layout, mesh: Mesh) -> tuple[int, int]:
    """Lower bounds of the moves and of the messages one after another that are left.

    Every axis takes a move of its own, but for reductions to all ranks, which several share. Only an all-to-all changes
    the order of the axes that split a dimension before and after.
    """
    steps = messages = 0
    reduced = set()
    for axis, size in mesh.sizes.items():
        before, after = (each.partial.get(axis, "split" if axis in each.split else "") for each in (here, target))
        if before == after:
            continue
        steps += 1
        if before in OPS and not after:
            steps -= before in reduced
            messages += 2 * (size - 1)
            reduced.add(before)
        elif before and after not in OPS:
            messages += size - 1
    both = set(here.split) & set(target.split)
    one, two = (gather(each, mesh, [axis for axis in each.split if axis not in both]) for each in (here, target))
    swapped = one.cuts != two.cuts
    return steps + swapped, messages + swapped
