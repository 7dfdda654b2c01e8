"""Ring: the partial sum of each segment travels once round the ring. For long arrays and few ranks."""

from collections.abc import Sequence

from collectives.algorithms.base import ClosedForms, ReduceScatterAlgorithm
from collectives.algorithms.parts.ring_pass import RingPass
from collectives.arrays import Range, Vector
from collectives.cost_model import Links, ProblemSize, ring_seconds
from collectives.group import Group
from collectives.reduction import Reduction


class RingReduceScatter(ReduceScatterAlgorithm, ClosedForms):
    """The left half of a ring's pass."""

    async def run(self, group: Group, vector: Vector, segments: Sequence[Range], reduction: Reduction) -> None:
        """Send to the next rank every segment but this rank's, each once it is reduced; extra memory is one piece.

        Source: Patarasuk, Yuan (see `collectives.algorithms.parts.ring_pass`), the first phase.
        """
        await RingPass(group, vector, segments).reduce_scatter(reduction)

    def seconds(self, problem: ProblemSize, links: Links) -> float:
        """Seconds on one node: (n-1) alpha + (n-1)/n m (beta + gamma); over several, by `ring_seconds`."""
        return ring_seconds(problem.nodes, problem.nbytes, links, reduce_steps=problem.size - 1, gather_steps=0)

    def steps(self, problem: ProblemSize) -> int:
        """Messages one after another: n-1."""
        return problem.size - 1

    def bytes_to(self, problem: ProblemSize, rank: int) -> dict[int, int]:
        """The array without this rank's segment, to the next rank."""
        nbytes = problem.nbytes - problem.segment_bytes[rank]
        return {(rank + 1) % problem.size: nbytes} if nbytes else {}
