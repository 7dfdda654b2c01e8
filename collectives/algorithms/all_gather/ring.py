"""Ring: each segment travels once round the ring. For long arrays and few ranks."""

from collections.abc import Sequence

from collectives.algorithms.base import AllGatherAlgorithm, SegmentForms
from collectives.algorithms.parts.ring_pass import RingPass
from collectives.arrays import Range, Vector, segment_bytes
from collectives.cost_model import Links, ring_seconds
from collectives.group import Group


class RingAllGather(AllGatherAlgorithm, SegmentForms):
    """The right half of a ring's pass."""

    async def run(self, group: Group, vector: Vector, spans: Sequence[Range]) -> None:
        """Send to the next rank every segment but its own, each as soon as it is here; no extra memory.

        Source: Patarasuk, Yuan (see `collectives.algorithms.parts.ring_pass`), the second phase.
        """
        await RingPass(group, vector, spans).all_gather()

    def cost(self, size: int, nbytes: int, alpha: float, beta: float, gamma: float) -> float:
        """Seconds: (n-1) alpha + (n-1)/n m beta."""
        return self.steps(size) * alpha + (size - 1) / size * nbytes * beta

    def seconds(self, nodes: Sequence[int], nbytes: int, links: Links) -> float:
        """Seconds by walking the ring: see `ring_seconds`."""
        return ring_seconds(nodes, nbytes, links, reduced=False, gathered=True)

    def steps(self, size: int) -> int:
        """Messages one after another: n-1."""
        return size - 1

    def bytes_to(
        self, size: int, rank: int, nbytes: int, itemsize: int = 1, lengths: Sequence[int] | None = None
    ) -> dict[int, int]:
        """To the next rank the array without that rank's segment."""
        following = (rank + 1) % size
        sent = nbytes - segment_bytes(size, nbytes, itemsize, lengths)[following]
        return {following: sent} if sent else {}
