"""The moves from a layout that may begin a path to another: the edges of the graph in which `path` searches.

Moves that never shorten a path are omitted: gathering an axis that is to be split again (an all-to-all sends
less, on every rank), making sums of axes that shall not be sums, all-to-alls to an order of cuts from which the target
needs another one, and strides that neither end has.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

from pipelined.sharding.collective_moves import AllGather, AllToAll, Move, ReduceScatter, ReduceToAll
from pipelined.sharding.layout import Cut, Layout, are_commutative
from pipelined.sharding.local_moves import Mask, Pad, Scale, Slice
from pipelined.sharding.mesh import Mesh
from pipelined.sharding.shards import Shards

CutsOfAxes = dict[int, tuple[Cut, ...]]


def candidate_moves(source: Shards, target: Layout) -> Iterator[Move]:
    """The moves of a tensor with which a cheapest path to the target may begin."""
    mesh, layout = source.mesh, source.layout
    for axis, op in layout.partial.items():
        for split in _splits(source, target, axis):
            yield ReduceScatter((axis,), source, _with_layout(source, split))
        if new_op := _other_mean(op, target.partial.get(axis)):
            yield Scale((axis,), source, _with_layout(source, Layout.of(layout.cuts, {**layout.partial, axis: new_op})))
    for op in sorted(set(layout.partial.values())):
        axes = [axis for axis in layout.partial if layout.partial[axis] == op and axis not in target.split]
        if axes := [axis for axis in axes if not both_summable(op, target.partial.get(axis))]:
            yield ReduceToAll(tuple(axes), source, _with_layout(source, _without_sums(layout, axes)))
    for axis in reversed(layout.split):  # the innermost first: what is left is not strided
        if axis not in target.split:
            gathered = gather(layout, mesh, (axis,))
            if axis not in target.partial:
                yield AllGather((axis,), source, _with_layout(source, gathered))
            yield from _into_sum(Pad, source, gathered, axis, target)
    for axis in [axis for axis in mesh.sizes if axis not in layout.split and axis not in layout.partial]:
        if layout.partial or axis in target.split or axis in target.partial:
            for split in _splits(source, target, axis):
                yield Slice((axis,), source, _with_layout(source, split))
        yield from _into_sum(Mask, source, layout, axis, target)
    for rearranged in _rearrangements(source, target):
        yield AllToAll(_changed_axes(layout, rearranged, mesh), source, _with_layout(source, rearranged))


def _other_mean(op: str, target_op: str | None) -> str | None:
    """What to make of a sum or mean: a mean becomes a sum, to be added up with others; a sum what the target wants."""
    return {"mean": "sum", "sum": "mean" if target_op == "mean" else None}.get(op)


def both_summable(op: str, target_op: str | None) -> bool:
    """Whether one becomes the other without a message: sums and means do."""
    return target_op is not None and (op == "max") == (target_op == "max")


def gather(layout: Layout, mesh: Mesh, axes: Sequence[str]) -> Layout:
    """The layout without these axes on its dimensions; an axis that is not the innermost leaves its parts."""
    cuts = {
        dimension: [mesh.sizes[cut] if isinstance(cut, str) and cut in axes else cut for cut in dimension_cuts]
        for dimension, dimension_cuts in layout.cuts.items()
    }
    return Layout.of(cuts, layout.partial)


def _with_layout(source: Shards, layout: Layout) -> Shards:
    return Shards(source.mesh, source.lengths, layout)


def _without_sums(layout: Layout, axes: Sequence[str]) -> Layout:
    return Layout.of(layout.cuts, {axis: op for axis, op in layout.partial.items() if axis not in axes})


def _into_sum(kind: type[Move], source: Shards, layout: Layout, axis: str, target: Layout) -> Iterator[Move]:
    """The move of one axis into the sum, mean or maximum that the target has there."""
    if axis in target.partial:
        partial = {**layout.partial, axis: target.partial[axis]}
        if are_commutative(partial):
            yield kind((axis,), source, _with_layout(source, Layout.of(layout.cuts, partial)))


def _splits(source: Shards, target: Layout, axis: str) -> Iterator[Layout]:
    """The layouts in which the axis splits a dimension besides those that do: a part of what each rank holds."""
    layout = _without_sums(source.layout, (axis,))
    splits = dict.fromkeys(Layout.of(cuts, layout.partial) for cuts in _place_axis(source, layout.cuts, axis))
    if axis in target.split:
        dimension = target.split[axis]
        cuts = _present_cuts(target, {*layout.split, axis}, source.mesh)[dimension]
        splits[Layout.of({**layout.cuts, dimension: cuts}, layout.partial)] = None
    return (split for split in splits if gather(split, source.mesh, (axis,)) == layout)


def _rearrangements(source: Shards, target: Layout) -> Iterator[Layout]:
    """The layouts that split the same axes as the target does; axes that it does not split come innermost."""
    split = set(source.layout.split)
    layouts = dict[Layout, None]()
    unfinished = [(_present_cuts(target, split, source.mesh), split - set(target.split))]
    while unfinished:
        cuts, unplaced = unfinished.pop()
        if not unplaced:
            layouts[Layout.of(cuts, source.layout.partial)] = None
        for axis in sorted(unplaced):  # in the same order on every rank: of equal paths all are to take the same one
            unfinished += [(placed, unplaced - {axis}) for placed in _place_axis(source, cuts, axis)]
    layouts.pop(source.layout, None)
    return iter(layouts)


def _present_cuts(target: Layout, axes: set[str], mesh: Mesh) -> CutsOfAxes:
    """The target's cuts, with the parts that are left of each axis that is not present."""
    return {
        dimension: tuple(mesh.sizes[cut] if isinstance(cut, str) and cut not in axes else cut for cut in cuts)
        for dimension, cuts in target.cuts.items()
    }


def _place_axis(source: Shards, cuts: CutsOfAxes, axis: str) -> Iterator[CutsOfAxes]:
    """The cuts with one axis more: innermost on any dimension, or in place of parts of its number."""
    for dimension in range(len(source.lengths)):
        present = cuts.get(dimension, ())
        yield {**cuts, dimension: (*present, axis)}
        for index, cut in enumerate(present):
            if cut == source.mesh.sizes[axis]:
                yield {**cuts, dimension: (*present[:index], axis, *present[index + 1 :])}


def _changed_axes(first: Layout, second: Layout, mesh: Mesh) -> tuple[str, ...]:
    """The fewest axes along which ranks exchange their pieces: without them both layouts are the same."""
    axes = [axis for axis in mesh.sizes if axis in first.split]
    for count in range(1, len(axes) + 1):
        for changed in combinations(axes, count):
            if gather(first, mesh, changed) == gather(second, mesh, changed):
                return changed
    return tuple(axes)
