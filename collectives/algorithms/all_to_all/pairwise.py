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
            target, source = (group.rank + step) % group.size, (group.rank - step) % group.size
            outgoing_signature = size_signature(group, outgoing[target].nbytes)
            incoming_signature = size_signature(group, incoming[source].nbytes)
            await run_both(
                _send(group, target, outgoing[target], outgoing_signature),
                _receive(group, source, incoming[source], incoming_signature),
            )

    def seconds(self, problem: ProblemSize, links: Links) -> float:
        """Seconds, where m is what one rank has for all: (n-1) (alpha + m/n beta)."""
        link = links.slowest(problem.nodes)
        return self.steps(problem) * (link.alpha + problem.nbytes / problem.size * link.beta)

    def steps(self, problem: ProblemSize) -> int:
        """Messages one after another: n-1."""
        return problem.size - 1

    def bytes_to(self, problem: ProblemSize, rank: int) -> dict[int, int]:
        """Each rank's array, to that rank; the problem's lengths are those of this rank's arrays."""
        return {peer: nbytes for peer, nbytes in enumerate(problem.segment_bytes) if nbytes and peer != rank}


async def _send(group: Group, target: int, array: memoryview, signature: Signature) -> None:
    await group.send(target, array, signature)
    await group.send_fingerprint(target, signature)  # if the array is empty


async def _receive(group: Group, source: int, array: memoryview, signature: Signature) -> None:
    await group.receive(source, array, signature)
    await group.check_fingerprint(source, signature)
