"""Seconds of ring passes and exchanges over ranks of one node or of several.

A message of b bytes occupies its link for b·beta seconds and arrives alpha seconds after that.
"""

from dataclasses import dataclass
from typing import NamedTuple

from collectives import Links
from collectives.cost_model import ring_pass_seconds


class GroupShape(NamedTuple):
    """The ranks of a collective: the nodes, and the ranks on each."""

    nodes: int
    ranks: int

    @property
    def size(self) -> int:
        return self.nodes * self.ranks


@dataclass(frozen=True)
class Network:
    """Links between ranks of a node, and between nodes.

    Args:
        links: links inside a node, and `links.far` between nodes, which are not faster.
        itemsize: bytes of an element.
    """

    links: Links
    itemsize: int = 4

    def ring(self, group: GroupShape, length: float, sums: bool) -> float:
        """Seconds of one pass: an all-gather, or a reduce-scatter (`sums`), of an array of `length` elements."""
        return ring_pass_seconds(*group, length * self.itemsize, self.links, sums=sums)

    def exchange(self, group: GroupShape, elements: float) -> float:
        """Seconds to send `elements` in equal messages to all other ranks of a group, one after another."""
        if group.size == 1:
            return 0.0
        nbytes = elements / (group.size - 1) * self.itemsize
        near, far = self.links, self.links.far or self.links
        inside, between = group.ranks - 1, group.size - group.ranks
        return inside * (near.alpha + nbytes * near.beta) + between * (far.alpha + nbytes * far.beta)
