"""Ring: each segment travels once round the ring. For long arrays and few ranks."""

from collections.abc import Sequence

from collectives.algorithms.base import AllGatherAlgorithm, ClosedForms
from collectives.algorithms.parts.ring_pass import RingPass
from collectives.arrays import Range, Vector
from collectives.cost_model import Links, ProblemSize, ring_seconds
from collectives.group import Group


class RingAllGather(AllGatherAlgorithm, ClosedForms):
    """The right half of a ring's pass."""

    async def run(self, group: Group, vector: Vector, segments: Sequence[Range]) -> None:
        """Send to the next rank every segment but its own, each as soon as it is here; no extra memory.

        Source: Patarasuk, Yuan (see `collectives.algorithms.parts.ring_pass`), the second phase.
        """
        await RingPass(group, vector, segments).all_gather()

    def seconds(self, problem: ProblemSize, links: Links) -> float:
        """Seconds on one node: (n-1) alpha + (n-1)/n m beta; over several, by `ring_seconds`."""
        return ring_seconds(problem.nodes, problem.nbytes, links, reduce_steps=0, gather_steps=problem.size - 1)

    def steps(self, problem: ProblemSize) -> int:
        """Messages one after another: n-1."""
        return problem.size - 1

    def bytes_to(self, problem: ProblemSize, rank: int) -> dict[int, int]:
        """The array without the next rank's segment, to that rank."""
        following = (rank + 1) % problem.size
        nbytes = problem.nbytes - problem.segment_bytes[following]
        return {following: nbytes} if nbytes else {}
