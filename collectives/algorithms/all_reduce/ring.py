"""Ring: reduce-scatter, then all-gather, sending only to the next rank. For long arrays and few ranks.

See `collectives.algorithms.parts.ring_pass` for the steps.
"""

from collectives.algorithms.base import AllReduceAlgorithm, ClosedForms
from collectives.algorithms.parts.ring_pass import RingPass
from collectives.arrays import Vector, segments
from collectives.cost_model import Links, ProblemSize, ring_seconds
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

    def seconds(self, problem: ProblemSize, links: Links) -> float:
        """Seconds on one node: 2(n-1) alpha + 2(n-1)/n m beta + (n-1)/n m gamma; over several, by `ring_seconds`."""
        half = problem.size - 1
        return ring_seconds(problem.nodes, problem.nbytes, links, reduce_steps=half, gather_steps=half)

    def steps(self, problem: ProblemSize) -> int:
        """Messages one after another: 2(n-1)."""
        return 2 * (problem.size - 1)

    def bytes_to(self, problem: ProblemSize, rank: int) -> dict[int, int]:
        """Each segment twice, but this rank's own and the next's once, to the next: 2(n-1)/n m if n divides m."""
        following = (rank + 1) % problem.size
        segment_bytes = problem.segment_bytes
        nbytes = 2 * problem.nbytes - segment_bytes[rank] - segment_bytes[following]
        return {following: nbytes} if nbytes else {}
