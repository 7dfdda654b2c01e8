"""Recursive doubling: exchange the whole array with partners at distances 1, 2, 4, ... For short arrays."""

from collectives.algorithms.base import AllReduceAlgorithm, ClosedForms
from collectives.algorithms.parts import folding
from collectives.arrays import Vector
from collectives.cost_model import Links, ProblemSize
from collectives.group import Group
from collectives.reduction import Reduction


class RecursiveDoublingAllReduce(AllReduceAlgorithm, ClosedForms):
    """The whole array, exchanged log2 n times."""

    async def run(self, group: Group, vector: Vector, reduction: Reduction) -> None:
        """Exchange and reduce among the ranks of the core; extra memory is one piece.

        Both partners reduce the same elements; both pass those of the lower core index first, so that the bits agree.

        Cost: log2 n steps; a rank sends and reduces the array log2 n times. If n is not a power of two, the same with
            the next lower power, plus the two steps of folding.
        Source: Thakur, Rabenseifner, Gropp, section 4.5.
        """

        async def double(core_index: int) -> None:
            scratch = group.workspace.scratch(vector, len(vector))
            distance = 1
            while distance < folding.core_of(group.size)[0]:
                await _swap(group, vector, reduction, scratch, core_index=core_index, partner=core_index ^ distance)
                distance *= 2
            reduction.finish(vector.elements, group.size)

        await folding.run_folded(group, vector, reduction, double)

    def seconds(self, problem: ProblemSize, links: Links) -> float:
        """Seconds: log2 c (alpha + m beta + m gamma), where c is the power of two, plus those of folding."""
        link = links.slowest(problem.nodes)
        doublings = folding.core_of(problem.size)[0].bit_length() - 1
        doubled = doublings * (link.alpha + problem.nbytes * (link.beta + link.gamma))
        return doubled + folding.seconds(problem, link)

    def steps(self, problem: ProblemSize) -> int:
        """Messages one after another: log2 c, one to fold in, and one to fold out. If at most half of the core received
        a folded array, these ranks end one step before the others, and folding out takes no extra step.
        """
        core, remainder = folding.core_of(problem.size)
        return core.bit_length() - 1 + (remainder > 0) + (2 * remainder > core)

    def bytes_to(self, problem: ProblemSize, rank: int) -> dict[int, int]:
        """The whole array to each partner, plus the bytes of folding."""
        size, nbytes = problem.size, problem.nbytes
        core_index = folding.core_index_of(rank, size)
        doublings = range(folding.core_of(size)[0].bit_length() - 1)
        partners = [] if core_index is None else [folding.rank_of(core_index ^ 1 << bit, size) for bit in doublings]
        return dict.fromkeys(partners if nbytes else (), nbytes) | folding.bytes_to(problem, rank)


async def _swap(
    group: Group, vector: Vector, reduction: Reduction, scratch: Vector, *, core_index: int, partner: int
) -> None:
    rank = folding.rank_of(partner, group.size)
    for low, high in group.workspace.pieces(vector, (0, len(vector))):
        await group.exchange(rank, vector.bytes(low, high), rank, scratch.bytes(0, high - low))
        reduction.into(vector, (low, high), scratch, mine_first=core_index < partner)
