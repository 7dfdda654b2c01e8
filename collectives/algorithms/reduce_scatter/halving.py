"""Halving: half as many segments are left to reduce after every step. For short arrays and many ranks."""

from collections.abc import Sequence

from collectives.algorithms.base import ClosedForms, ReduceScatterAlgorithm
from collectives.algorithms.parts.doubling import doubling_steps, sent_bytes, steps
from collectives.algorithms.parts.pieces import reduce_pieces, send_segments
from collectives.arrays import Range, Vector
from collectives.cost_model import Links, ProblemSize
from collectives.group import Group
from collectives.group.concurrency import run_both
from collectives.reduction import Reduction


class HalvingReduceScatter(ReduceScatterAlgorithm, ClosedForms):
    """The steps of `collectives.algorithms.parts.doubling`, backwards."""

    async def run(self, group: Group, vector: Vector, segments: Sequence[Range], reduction: Reduction) -> None:
        """Send partial sums, reduce as many; extra memory is one piece. Source: see `parts.doubling`."""
        for step in reversed(list(doubling_steps(group.size, group.rank))):
            reduced_segments, sent_segments = (
                [segments[number] for number in numbers] for numbers in (step.sent_numbers, step.received_numbers)
            )
            reducing = _reduce(group, step.target, vector, reduced_segments, reduction)
            await run_both(send_segments(group, step.source, vector, sent_segments), reducing)
        low, high = segments[group.rank]
        reduction.finish(vector.elements[low:high], group.size)

    def seconds(self, problem: ProblemSize, links: Links) -> float:
        """Seconds: ceil(log2 n) alpha + (n-1)/n m (beta + gamma)."""
        link = links.slowest(problem.nodes)
        n = problem.size
        return self.steps(problem) * link.alpha + (n - 1) / n * problem.nbytes * (link.beta + link.gamma)

    def steps(self, problem: ProblemSize) -> int:
        """Messages one after another: ceil(log2 n)."""
        return steps(problem.size)

    def bytes_to(self, problem: ProblemSize, rank: int) -> dict[int, int]:
        """The segments that each peer reduces from then on, to that peer: (n-1)/n m in all if n divides m."""
        links = ((step.source, step.received_numbers) for step in doubling_steps(problem.size, rank))
        return sent_bytes(links, problem.segment_bytes)


async def _reduce(group: Group, source: int, vector: Vector, segments: Sequence[Range], reduction: Reduction) -> None:
    await reduce_pieces(group, source, vector, *segments, reduction=reduction)
    await group.check_fingerprint(source)
