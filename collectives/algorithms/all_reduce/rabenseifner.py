"""Rabenseifner's algorithm: recursive halving, then recursive doubling. For long arrays and many ranks.

Each rank of the core (see `collectives.algorithms.parts.folding`) halves its range with partners at distances 1, 2,
4, ..: it sends one half and reduces the other. Then it gathers the halves with the same partners in reverse order. The
nearest partner exchanges the largest messages.
"""

from collections import Counter

from collectives.algorithms.base import AllReduceAlgorithm, ClosedForms
from collectives.algorithms.parts import folding
from collectives.algorithms.parts.pieces import receive_pieces, reduce_pieces, send_pieces
from collectives.arrays import Range, Vector
from collectives.cost_model import Links, ProblemSize
from collectives.group import Group
from collectives.group.concurrency import run_both
from collectives.reduction import Reduction


class RabenseifnerAllReduce(AllReduceAlgorithm, ClosedForms):
    """Halving, then doubling."""

    async def run(self, group: Group, vector: Vector, reduction: Reduction) -> None:
        """Halve and double among the ranks of the core; extra memory is one piece.

        Cost: 2 log2 n steps; a rank sends 2(n-1)/n of the array and reduces (n-1)/n. If n is not a power of two, the
            same with the next lower power, plus two steps of the whole array for folding.
        Source: Rabenseifner, "Optimization of Collective Reduction Operations", section 3; Thakur, Rabenseifner, Gropp,
            section 4.5.
        """

        async def halve_and_double(core_index: int) -> None:
            levels = halvings(core_index, folding.core_of(group.size)[0], len(vector))
            for distance, kept_half, sent_half in levels:
                partner = folding.rank_of(core_index ^ distance, group.size)
                sending = send_pieces(group, partner, vector, sent_half)
                await run_both(sending, reduce_pieces(group, partner, vector, kept_half, reduction=reduction))
            low, high = levels[-1][1] if levels else (0, len(vector))
            reduction.finish(vector.elements[low:high], group.size)
            for distance, kept_half, sent_half in reversed(levels):
                partner = folding.rank_of(core_index ^ distance, group.size)
                await run_both(
                    send_pieces(group, partner, vector, kept_half), receive_pieces(group, partner, vector, sent_half)
                )

        await folding.run_folded(group, vector, reduction, halve_and_double)

    def seconds(self, problem: ProblemSize, links: Links) -> float:
        """Seconds: 2 log2 c alpha + (c-1)/c m (2 beta + gamma), where c is the power of two, plus those of folding."""
        link = links.slowest(problem.nodes)
        core = folding.core_of(problem.size)[0]
        in_core = (core - 1) / core * problem.nbytes * (2 * link.beta + link.gamma)
        return 2 * (core.bit_length() - 1) * link.alpha + in_core + folding.seconds(problem, link)

    def steps(self, problem: ProblemSize) -> int:
        """Messages one after another: 2 log2 c, plus those of folding."""
        return 2 * (folding.core_of(problem.size)[0].bit_length() - 1) + folding.steps(problem.size)

    def bytes_to(self, problem: ProblemSize, rank: int) -> dict[int, int]:
        """One half while halving and one while doubling, to each partner: 2(c-1)/c m in total if c divides m; plus the
        bytes of folding.
        """
        size, itemsize = problem.size, problem.itemsize
        core_index = folding.core_index_of(rank, size)
        bytes_by_peer = Counter(folding.bytes_to(problem, rank))
        if core_index is None:
            return dict(+bytes_by_peer)  # without zeros
        for distance, kept_half, sent_half in halvings(
            core_index, folding.core_of(size)[0], problem.nbytes // itemsize
        ):
            elements = sum(high - low for low, high in (kept_half, sent_half))
            bytes_by_peer[folding.rank_of(core_index ^ distance, size)] += elements * itemsize
        return dict(+bytes_by_peer)  # without zeros


def halvings(core_index: int, core: int, length: int) -> list[tuple[int, Range, Range]]:
    """The distance of each partner in turn, the half that this rank keeps, and the half that it sends.

    Both indices have equal lower bits, so both ranks hold the same range; an odd element goes to the upper half.
    """
    levels = []
    low = 0
    high = length
    for bit in range(core.bit_length() - 1):
        middle = (low + high) // 2
        kept_half, sent_half = (low, middle), (middle, high)
        if core_index >> bit & 1:
            kept_half, sent_half = sent_half, kept_half
        levels.append((1 << bit, kept_half, sent_half))
        low, high = kept_half
    return levels
