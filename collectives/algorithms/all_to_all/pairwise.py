"""Pairwise: at step k each rank sends to the rank k after it and receives from the rank k before it."""

from collections.abc import Sequence

from collectives.algorithms.base import AllToAllAlgorithm, ClosedForms, size_signature
from collectives.cost_model import Links, ProblemSize
from collectives.group import Group
from collectives.group.concurrency import run_both
from collectives.group.signature import Signature


class PairwiseAllToAll(AllToAllAlgorithm, ClosedForms):
    """One exchange for every other rank."""

    async def run(self, group: Group, outgoing: Sequence[memoryview], incoming: Sequence[memoryview]) -> None:
        """Send every array directly; no extra memory. Source: Thakur, Rabenseifner, Gropp, section 4.2."""
        incoming[group.rank][:] = outgoing[group.rank]
        for step in range(1, group.size):
            to, source = (group.rank + step) % group.size, (group.rank - step) % group.size
            sent, expected = size_signature(group, outgoing[to].nbytes), size_signature(group, incoming[source].nbytes)
            await run_both(_send(group, to, outgoing[to], sent), _receive(group, source, incoming[source], expected))

    def seconds(self, problem: ProblemSize, links: Links) -> float:
        """Seconds, where m is what one rank has for all: (n-1) (alpha + m/n beta)."""
        link = links.slowest(problem.nodes)
        return self.steps(problem) * (link.alpha + problem.nbytes / problem.size * link.beta)

    def steps(self, problem: ProblemSize) -> int:
        """Messages one after another: n-1."""
        return problem.size - 1

    def bytes_to(self, problem: ProblemSize, rank: int) -> dict[int, int]:
        """To each rank its array; the problem's lengths are those of this rank's arrays."""
        return {peer: sent for peer, sent in enumerate(problem.segment_bytes) if sent and peer != rank}


async def _send(group: Group, to: int, array: memoryview, signature: Signature) -> None:
    await group.send(to, array, signature)
    await group.send_fingerprint(to, signature)  # if the array is empty


async def _receive(group: Group, source: int, array: memoryview, expected: Signature) -> None:
    await group.receive(source, array, expected)
    await group.check_fingerprint(source, expected)
