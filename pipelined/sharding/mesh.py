"""Mesh: ranks in a grid with named axes, as "node=2 gpu=4".

Ranks are numbered in row-major order: the last axis varies fastest. Rank 6 of "node=2 gpu=4" has node 1 and gpu 2.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod

from pipelined.errors import UsageError

AXIS = re.compile(r"([A-Za-z_]\w*)=(\d+)")


class Mesh:
    """A grid of ranks.

    Args:
        text: the axes with their sizes, outermost first, such as "node=2 gpu=4"; "" is one rank.
    Attributes:
        sizes: the ranks along each axis, by name, outermost first.
        size: all ranks.
    Raises:
        UsageError: the text is no mesh, a size is 0, or an axis is named twice.
    """

    def __init__(self, text: str):
        sizes: dict[str, int] = {}
        for word in text.split():
            match = AXIS.fullmatch(word)
            if not match or int(match[2]) < 1:
                raise UsageError(f"no axis of a mesh: {word!r} (mesh: {text!r}); write NAME=RANKS, such as gpu=4")
            if match[1] in sizes:
                raise UsageError(f"axis {match[1]!r} is named twice (mesh: {text!r}); name each axis once")
            sizes[match[1]] = int(match[2])
        self.sizes: Mapping[str, int] = sizes
        self.size = prod(sizes.values())
        self._key = tuple(sizes.items())
        self._hash = hash(self._key)  # each move of each microbatch looks something up by its mesh

    def __repr__(self) -> str:
        return f"Mesh({str(self)!r})"

    def __str__(self) -> str:
        return " ".join(f"{axis}={size}" for axis, size in self.sizes.items())

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Mesh) and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> "tuple[type[Mesh], tuple[str]]":
        return Mesh, (str(self),)  # a hash of text counts in one process alone

    @cached_property
    def _strides(self) -> dict[str, int]:
        """For each axis, by how much the rank grows with its coordinate."""
        strides = {}
        stride = 1
        for axis, size in reversed(list(self.sizes.items())):
            strides[axis] = stride
            stride *= size
        return strides

    def require(self, axes: Sequence[str]) -> None:
        """Raises UsageError: the mesh has no axis of one of these names."""
        for axis in axes:
            if axis not in self.sizes:
                known = ", ".join(self.sizes) or "none"
                raise UsageError(f"no axis {axis!r} in the mesh (mesh: {str(self)!r}); known: {known}")

    def coordinate(self, rank: int, axis: str) -> int:
        """Where the rank stands on one axis."""
        return rank // self._strides[axis] % self.sizes[axis]

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where the rank stands on each axis, by name.

        Raises:
            UsageError: the mesh has no such rank.
        """
        if not 0 <= rank < self.size:
            raise UsageError(f"no rank {rank} in the mesh (mesh: {str(self)!r}); ranks are 0 to {self.size - 1}")
        return {axis: self.coordinate(rank, axis) for axis in self.sizes}

    def rank(self, coordinates: Mapping[str, int]) -> int:
        """The rank with these coordinates; 0 on an axis that is not given."""
        return sum(self._strides[axis] * coordinate for axis, coordinate in coordinates.items())

    def group(self, rank: int, axes: Sequence[str]) -> tuple[int, ...]:
        """The ranks that differ from this rank on the given axes only; the last of these axes varies fastest.

        Raises:
            UsageError: the mesh has no such axis.
        """
        self.require(axes)
        members = [rank - sum(self.coordinate(rank, axis) * self._strides[axis] for axis in axes)]
        for axis in axes:
            stride = self._strides[axis]
            members = [member + coordinate * stride for member in members for coordinate in range(self.sizes[axis])]
        return tuple(members)
