"""Seconds of ring passes and exchanges over ranks of one node or of several; a ring over nodes is walked.

A message of b bytes occupies its link for b·beta seconds and arrives alpha seconds after that.
"""

from dataclasses import dataclass
from typing import NamedTuple

from collectives import Links


class GroupShape(NamedTuple):
    """The ranks of a collective: as many of each of so many nodes."""

    nodes: int
    ranks: int

    @property
    def size(self) -> int:
        return self.nodes * self.ranks


@dataclass(frozen=True)
class Network:
    """Links between ranks of a node, and between nodes.

    Args:
        near: links inside a node.
        far: links between nodes, which are not faster; None: as inside.
        itemsize: bytes of an element.
    """

    near: Links
    far: Links | None = None
    itemsize: int = 4

    def ring(self, group: GroupShape, length: float, sums: bool) -> float:
        """Seconds of one pass: an all-gather, or a reduce-scatter (`sums`), of an array of `length` elements.

        Every rank sends size - 1 parts to the next rank, each after the part before it has left and has arrived. The
        pass takes the longest chain of such waits. It goes along a part of the ring, and at its slowest link it waits
        for the messages that are left. Over several nodes the longest chain is one of four: one far link alone, or
        with the near links around it; from the first far link to the last; around the ring but for one link.
        """
        size = group.size
        if size == 1:
            return 0.0
        nbytes = length / size * self.itemsize
        near, far = self.near, self.far or self.near
        adding = (size - 1) * nbytes * near.gamma if sums else 0.0
        inside = near.alpha + nbytes * near.beta
        if group.nodes == 1:
            return (size - 1) * inside + adding
        between, left = far.alpha + nbytes * far.beta, nbytes * far.beta
        if group.ranks == 1:
            return (size - 1) * between + adding
        around, side = (group.nodes - 1) * (group.ranks - 1), group.ranks - 1
        return adding + max(
            between + (size - 2) * left,
            between + 2 * side * inside + (size - 2 - 2 * side) * left,
            group.nodes * between + around * inside + (group.ranks - 2) * left,
            group.nodes * between + (around + group.ranks - 2) * inside,
        )

    def exchange(self, group: GroupShape, elements: float) -> float:
        """Seconds to send `elements` in equal messages to all other ranks of a group, one after another."""
        if group.size == 1:
            return 0.0
        nbytes = elements / (group.size - 1) * self.itemsize
        near, far = self.near, self.far or self.near
        inside, between = group.ranks - 1, group.size - group.ranks
        return inside * (near.alpha + nbytes * near.beta) + between * (far.alpha + nbytes * far.beta)
