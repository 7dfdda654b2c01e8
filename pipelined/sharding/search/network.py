"""Seconds of ring passes and exchanges over ranks of one node or of several.

A message of b bytes occupies its link for b·beta seconds and arrives alpha seconds after that. Where the links have
prices of shared memory, each move between ranks of one node has the price of its collective.
"""

from dataclasses import dataclass
from typing import NamedTuple

from collectives import Links
from collectives.cost_model import MemoryCosts, ring_pass_seconds
from pipelined.sharding.search.matmul import RingPasses


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

    def passes(self, group: GroupShape, ring: RingPasses) -> float:
        nbytes = ring.length * self.itemsize
        gathers = ring.passes - ring.sums
        if memory := self._memory(group):
            pairs = ring.all_reduces
            numbers = {"all_reduce": pairs, "reduce_scatter": ring.sums - pairs, "all_gather": gathers - pairs}
            return sum(number * memory.seconds(name, nbytes) for name, number in numbers.items())
        gather, reduce_scatter = (ring_pass_seconds(*group, nbytes, self.links, sums=sums) for sums in (False, True))
        return gathers * gather + ring.sums * reduce_scatter

    def exchange(self, group: GroupShape, elements: float, part: float) -> float:
        """Seconds to send `elements` in equal messages to all other ranks of a group, one after another.

        Args:
            part: elements that a rank has before and after.
        """
        if group.size == 1:
            return 0.0
        if memory := self._memory(group):
            return memory.seconds("all_to_all", part * self.itemsize)
        nbytes = elements / (group.size - 1) * self.itemsize
        near = self.links
        far = self.links.far or self.links
        inside = group.ranks - 1
        between = group.size - group.ranks
        return inside * (near.alpha + nbytes * near.beta) + between * (far.alpha + nbytes * far.beta)

    def _memory(self, group: GroupShape) -> MemoryCosts | None:
        """The prices of memory that the ranks of a group share, where they have a price and there are several."""
        return self.links.memory if group.nodes == 1 < group.ranks else None
