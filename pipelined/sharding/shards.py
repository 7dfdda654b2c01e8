"""Shards: the pieces of one tensor that the ranks of a mesh hold under a layout, as ranges of indices.

A piece is a block: for each dimension some ranges of indices, in ascending order, of which the rank's own array holds
every combination. A dimension has one range, or several where the split is strided. Lengths that do not divide give
unequal pieces, some of which may be empty.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from collectives import segment
from pipelined.errors import UsageError
from pipelined.sharding.layout import Cut, Layout
from pipelined.sharding.mesh import Mesh

Ranges = tuple[tuple[int, int], ...]
"""Ranges [low, high) of one dimension: ascending, none empty, no two adjacent."""

Piece = tuple[Ranges, ...]
"""For each dimension its ranges."""


class TensorPart(NamedTuple):
    """A piece of a tensor of a known shape.

    Args:
        whole: the shape of the tensor.
        indices: those of its elements that are in the piece.
    """

    whole: tuple[int, ...]
    indices: Piece

    @classmethod
    def everything(cls, whole: Sequence[int]) -> "TensorPart":
        """All of a tensor."""
        return cls(tuple(whole), tuple(_held_ranges(size, ()) for size in whole))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the piece."""
        return shape_of(self.indices)

    def rows(self, low: int, high: int) -> "TensorPart":
        """The rows [low, high) of the piece, counted in its own first dimension."""
        first, *sides = self.indices
        places = accumulate((stop - start for start, stop in first), initial=0)
        ranges = [
            (max(a, a + low - place), min(b, a + high - place)) for (a, b), place in zip(first, places, strict=False)
        ]
        return TensorPart(self.whole, (_join_ranges([(a, b) for a, b in ranges if a < b]), *sides))

    def overlap(self, other: "TensorPart") -> Piece | None:
        """The indices in both pieces; None: there are none."""
        indices = tuple(map(common_ranges, self.indices, other.indices))
        return indices if all(indices) else None


class Shards:
    """A tensor of some shape under a layout on a mesh.

    Args:
        shape: of the whole tensor; 0 is allowed.
        layout: a `Layout`, or its text.
    Raises:
        UsageError: the layout names an axis that the mesh lacks, or a dimension that the shape lacks.
    """

    def __init__(self, mesh: Mesh, shape: Sequence[int], layout: Layout | str):
        self.mesh = mesh
        self.lengths = tuple(shape)
        self.layout = _parsed(layout) if isinstance(layout, str) else layout
        if min(self.lengths, default=0) < 0:
            raise UsageError(f"a shape with a negative length (shape: {self.lengths}); give lengths of 0 or more")
        self.layout.check(mesh, len(self.lengths))
        self._pieces: dict[int, Piece] = {}

    def __repr__(self) -> str:
        return f"Shards({self.mesh!r}, {self.lengths}, {str(self.layout)!r})"

    @property
    def is_uniform(self) -> bool:
        """Whether all ranks hold the whole tensor, or all hold summands of it: so it lies alike on any mesh."""
        layout = self.layout.without_trivial_axes(self.mesh)
        axes = [axis for axis, size in self.mesh.sizes.items() if size > 1]
        return not layout.cuts and (not layout.partial or layout.partial == dict.fromkeys(sorted(axes), "sum"))

    def uniform_on(self, mesh: Mesh) -> "Shards":
        """The same, where it is uniform, on another mesh of the same ranks."""
        partial = self.layout.without_trivial_axes(self.mesh).partial
        return Shards(mesh, self.lengths, Layout.of({}, dict.fromkeys(mesh.sizes, "sum") if partial else {}))

    def pieces(self, rank: int) -> Piece:
        """The indices of the whole tensor that the rank holds."""
        if rank not in self._pieces:
            coordinates = self.mesh.coordinates(rank)
            self._pieces[rank] = tuple(
                _held_ranges(length, tuple(self._cut(cut, coordinates) for cut in self.layout.cuts.get(dimension, ())))
                for dimension, length in enumerate(self.lengths)
            )
        return self._pieces[rank]

    def shape(self, rank: int) -> tuple[int, ...]:
        """The shape of the rank's own array."""
        return shape_of(self.pieces(rank))

    def size(self, rank: int) -> int:
        """The elements of the rank's own array."""
        return prod(self.shape(rank))

    def local(self, tensor: Any, rank: int) -> Any:
        """The rank's own array, cut from the whole tensor: a new contiguous array.

        For a partial sum the first rank of the axis holds the tensor, and the others zeros; for a mean or a maximum
        all hold the tensor.

        Args:
            tensor: a numpy array or torch tensor of the whole shape.
        Raises:
            UsageError: it has another shape.
        """
        if tuple(tensor.shape) != self.lengths:
            raise UsageError(f"a tensor of another shape (shape: {tuple(tensor.shape)}, layout's: {self.lengths})")
        piece = take(tensor, self.pieces(rank))
        if not self.is_first_partial(rank):
            piece[...] = 0
        return piece

    def is_first_partial(self, rank: int) -> bool:
        """Whether the rank is the first on every axis of a partial sum: there `local` and moves put the summand."""
        summed = [axis for axis, op in self.layout.partial.items() if op == "sum"]
        return not any(self.mesh.coordinate(rank, axis) for axis in summed)

    def _cut(self, cut: Cut, coordinates: dict[str, int]) -> tuple[int, int | None]:
        """The number of parts, and the part that a rank with these coordinates holds; None: all."""
        return (cut, None) if isinstance(cut, int) else (self.mesh.sizes[cut], coordinates[cut])


_parsed = lru_cache(maxsize=1 << 12)(Layout)
"""A layout from its text; each step makes shards of the same ones."""


@lru_cache(maxsize=1 << 16)
def _held_ranges(length: int, cuts: tuple[tuple[int, int | None], ...]) -> Ranges:
    """The ranges that are left of a dimension after cuts of (parts, the held one or None)."""
    ranges = [(0, length)]
    for parts, part in cuts:
        kept_parts = range(parts) if part is None else (part,)
        ranges = [
            (low + start, low + stop)
            for low, high in ranges
            for start, stop in (segment(high - low, parts, index) for index in kept_parts)
        ]
    return _join_ranges(ranges)


def _join_ranges(ranges: Sequence[tuple[int, int]]) -> Ranges:
    joined: list[tuple[int, int]] = []
    for low, high in ranges:
        if joined and joined[-1][1] == low:
            joined[-1] = joined[-1][0], high
        elif low < high:
            joined.append((low, high))
    return tuple(joined)


def length_of(ranges: Ranges) -> int:
    """The number of indices in the ranges."""
    return sum(high - low for low, high in ranges)


@lru_cache(maxsize=1 << 16)
def shape_of(piece: Piece) -> tuple[int, ...]:
    """The shape of the array of these indices."""
    return tuple(map(length_of, piece))


def merge_dimensions(piece: Piece, lengths: Sequence[int], shape: Sequence[int]) -> Piece:
    """The same indices in a tensor of fewer dimensions, each of which is one or several neighbours of the piece's.

    Args:
        lengths: the shape in which the piece is given, such as (C, 3, H, K).
        shape: the other one, such as (C, 3·H·K).
    Raises:
        UsageError: the one is not the other with neighbouring dimensions made one.
    """
    sides = []
    end = 0
    for index, size in enumerate(shape):
        first = end
        end = len(lengths) if index == len(shape) - 1 else end + 1
        while end < len(lengths) and prod(lengths[first:end]) < size:
            end += 1
        if prod(lengths[first:end]) != size:
            fact = f"dimensions that cannot be merged (from: {tuple(lengths)}, to: {tuple(shape)})"
            raise UsageError(f"{fact}; merge neighbouring ones alone")
        sides.append(_flatten_ranges(piece[first:end], lengths[first:end]))
    return tuple(sides)


def _flatten_ranges(sides: Sequence[Ranges], lengths: Sequence[int]) -> Ranges:
    """The ranges of several dimensions as ranges of their row-major numbers."""
    flat: Sequence[tuple[int, int]] = ((0, 1),)
    for ranges, length in zip(sides, lengths, strict=True):
        if ranges == ((0, length),):
            flat = [(low * length, high * length) for low, high in flat]
        else:
            rows = [row for low, high in flat for row in range(low, high)]
            flat = [(row * length + low, row * length + high) for row in rows for low, high in ranges]
    return _join_ranges(flat)


@lru_cache(maxsize=1 << 16)
def common_ranges(first: Ranges, second: Ranges) -> Ranges:
    """The indices in both."""
    if first == second:
        return first
    return _join_ranges([(max(a, c), min(b, d)) for a, b in first for c, d in second if max(a, c) < min(b, d)])


def places_in(outer: Piece, inner: Piece) -> Piece:
    """Where the indices `inner` lie in the array of a rank that holds `outer`, which has all of them."""
    return tuple(map(_positions_within, outer, inner))


@lru_cache(maxsize=1 << 16)
def _positions_within(outer: Ranges, inner: Ranges) -> Ranges:
    places = []
    offset = 0
    for low, high in outer:
        places += [
            (offset + max(low, a) - low, offset + min(high, b) - low) for a, b in inner if max(low, a) < min(high, b)
        ]
        offset += high - low
    return _join_ranges(places)


def take(array: Any, piece: Piece) -> Any:
    """A new contiguous array of the elements at these indices of an array."""
    taken = empty_like(array, shape_of(piece))
    for source, place in blocks(piece):
        taken[place] = array[source]
    return taken


def put(array: Any, piece: Piece, values: Any) -> None:
    """Write values, of the piece's shape, to these indices of an array."""
    for target, place in blocks(piece):
        array[target] = values[place]


def empty_like(array: Any, shape: tuple[int, ...]) -> Any:
    """A new array of another shape, of the array's kind and dtype; its values are not set."""
    if hasattr(array, "new_empty"):  # a torch tensor
        return array.new_empty(shape)
    return np.empty(shape, array.dtype)


def blocks(piece: Piece) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """For each block of ranges: its indices in the array that has the piece, and in the packed piece."""
    sides = []
    for ranges in piece:
        side = []
        offset = 0
        for low, high in ranges:
            side.append((slice(low, high), slice(offset, offset + high - low)))
            offset += high - low
        sides.append(side)
    for chosen in product(*sides):
        yield tuple(source for source, _ in chosen), tuple(place for _, place in chosen)
