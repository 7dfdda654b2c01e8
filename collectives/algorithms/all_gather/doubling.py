"""Doubling: twice as many segments are held after every step. For short arrays and many ranks."""

from collections.abc import Sequence

from collectives.algorithms.base import AllGatherAlgorithm, ClosedForms
from collectives.algorithms.parts.doubling import doubling_steps, sent_bytes, steps
from collectives.algorithms.parts.pieces import receive_pieces, send_segments
from collectives.arrays import Range, Vector
from collectives.cost_model import Links, ProblemSize
from collectives.group import Group
from collectives.group.concurrency import run_both


class DoublingAllGather(AllGatherAlgorithm, ClosedForms):
    """The steps of `collectives.algorithms.parts.doubling`."""

    async def run(self, group: Group, vector: Vector, segments: Sequence[Range]) -> None:
        """Send what is held, receive as much; no extra memory. Source: see `parts.doubling`."""
        for step in doubling_steps(group.size, group.rank):
            sent_segments, received_segments = (
                [segments[number] for number in numbers] for numbers in (step.sent_numbers, step.received_numbers)
            )
            receiving = _receive(group, step.source, vector, received_segments)
            await run_both(send_segments(group, step.target, vector, sent_segments), receiving)

    def seconds(self, problem: ProblemSize, links: Links) -> float:
        """Seconds: ceil(log2 n) alpha + (n-1)/n m beta."""
        link = links.slowest(problem.nodes)
        n = problem.size
        return self.steps(problem) * link.alpha + (n - 1) / n * problem.nbytes * link.beta

    def steps(self, problem: ProblemSize) -> int:
        """Messages one after another: ceil(log2 n)."""
        return steps(problem.size)

    def bytes_to(self, problem: ProblemSize, rank: int) -> dict[int, int]:
        """The segments held at each step, to the peer of that step: (n-1)/n m in all if n divides m."""
        links = ((step.target, step.sent_numbers) for step in doubling_steps(problem.size, rank))
        return sent_bytes(links, problem.segment_bytes)


async def _receive(group: Group, source: int, vector: Vector, segments: Sequence[Range]) -> None:
    await receive_pieces(group, source, vector, *segments)
    await group.check_fingerprint(source)
