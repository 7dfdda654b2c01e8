"""Ring: the partial sum of each segment travels once round the ring. For long arrays and few ranks."""

from collections.abc import Sequence

from collectives.algorithms.base import ReduceScatterAlgorithm, SegmentForms
from collectives.algorithms.parts.ring_pass import RingPass
from collectives.arrays import Range, Vector, segment_bytes
from collectives.cost_model import Links, ring_seconds
from collectives.group import Group
from collectives.reduction import Reduction


class RingReduceScatter(ReduceScatterAlgorithm, SegmentForms):
    """The left half of a ring's pass."""

    async def run(self, group: Group, vector: Vector, spans: Sequence[Range], reduction: Reduction) -> None:
        """Send to the next rank every segment but this rank's, each once it is reduced; extra memory is one piece.

        Source: Patarasuk, Yuan (see `collectives.algorithms.parts.ring_pass`), the first phase.
        """
        await RingPass(group, vector, spans).reduce_scatter(reduction)

    def cost(self, size: int, nbytes: int, alpha: float, beta: float, gamma: float) -> float:
        """Seconds: (n-1) alpha + (n-1)/n m (beta + gamma)."""
        return self.steps(size) * alpha + (size - 1) / size * nbytes * (beta + gamma)

    def seconds(self, nodes: Sequence[int], nbytes: int, links: Links) -> float:
        """Seconds by walking the ring: see `ring_seconds`."""
        return ring_seconds(nodes, nbytes, links, reduced=True, gathered=False)

    def steps(self, size: int) -> int:
        """Messages one after another: n-1."""
        return size - 1

    def bytes_to(
        self, size: int, rank: int, nbytes: int, itemsize: int = 1, lengths: Sequence[int] | None = None
    ) -> dict[int, int]:
        """To the next rank the array without this rank's segment."""
        sent = nbytes - segment_bytes(size, nbytes, itemsize, lengths)[rank]
        return {(rank + 1) % size: sent} if sent else {}
