"""Ring: reduce-scatter, then all-gather, sending only to the next rank. For long arrays and few ranks.

See `collectives.algorithms.parts.ring_pass` for the steps.
"""

from collections.abc import Sequence

from collectives.algorithms.base import AllReduceAlgorithm, ClosedForms
from collectives.algorithms.parts.ring_pass import RingPass
from collectives.arrays import Vector, segment, segments
from collectives.cost_model import Links, ring_seconds
from collectives.group import Group
from collectives.reduction import Reduction


class RingAllReduce(AllReduceAlgorithm, ClosedForms):
    """A pass of a ring, both halves."""

    async def run(self, group: Group, vector: Vector, reduction: Reduction) -> None:
        """Run both phases, in pieces; extra memory is one piece.

        Cost: 2(n-1) steps; a rank sends 2(n-1)/n of the array, the minimum of any all-reduce, and reduces (n-1)/n.
        Source: Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", section 4.
        """
        await RingPass(group, vector, segments(len(vector), group.size)).all_reduce(reduction)

    def cost(self, size: int, nbytes: int, alpha: float, beta: float, gamma: float) -> float:
        """Seconds: 2(n-1) alpha + 2(n-1)/n m beta + (n-1)/n m gamma."""
        return self.steps(size) * alpha + (size - 1) / size * nbytes * (2 * beta + gamma)

    def seconds(self, nodes: Sequence[int], nbytes: int, links: Links) -> float:
        """Seconds by walking the ring: see `ring_seconds`."""
        return ring_seconds(nodes, nbytes, links, reduced=True, gathered=True)

    def steps(self, size: int) -> int:
        """Messages one after another: 2(n-1)."""
        return 2 * (size - 1)

    def bytes_to(self, size: int, rank: int, nbytes: int, itemsize: int = 1) -> dict[int, int]:
        """To the next rank, each segment twice, but this rank's own and the next's once: 2(n-1)/n m if n divides m."""
        sent_once = (segment(nbytes // itemsize, size, part % size) for part in (rank, rank + 1))
        sent = 2 * nbytes - sum(high - low for low, high in sent_once) * itemsize
        return {(rank + 1) % size: sent} if sent else {}
