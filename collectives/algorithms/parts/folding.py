"""Folding: runs an algorithm for 2^k ranks on any number of ranks; the remainder folds in first and out last.

With core = 2^k <= n and r = n - core, the ranks 0, 2, .. 2r-2 send their array to the next rank and wait:

    n = 6, core = 4, r = 2     0 -> 1    2 -> 3    4    5       fold in
                                    1         3    4    5       the core, indices 0, 1, 2, 3
                               0 <- 1    2 <- 3    4    5       fold out

Source: Thakur, Rabenseifner, Gropp, section 4.5 (number of processes not a power of two).
"""

from collections.abc import Awaitable, Callable

from collectives.algorithms.parts.pieces import receive_pieces, reduce_pieces, send_pieces
from collectives.arrays import Vector
from collectives.cost_model import Links, ProblemSize
from collectives.group import Group
from collectives.reduction import Reduction


def core_of(size: int) -> tuple[int, int]:
    """The largest power of two up to `size`, and the remainder that is folded in."""
    core = 1 << (size.bit_length() - 1)
    return core, size - core


def rank_of(core_index: int, size: int) -> int:
    """The rank with this index in the core."""
    remainder = core_of(size)[1]
    return 2 * core_index + 1 if core_index < remainder else core_index + remainder


def core_index_of(rank: int, size: int) -> int | None:
    """The index of this rank in the core; None if it is not in the core: it sends its array and waits."""
    remainder = core_of(size)[1]
    if rank >= 2 * remainder:
        return rank - remainder
    return rank // 2 if rank % 2 else None


async def run_folded(
    group: Group, vector: Vector, reduction: Reduction, work: Callable[[int], Awaitable[None]]
) -> None:
    """Fold in, run `work` on the ranks of the core, fold out.

    Args:
        work: reduces over the core and finishes; its argument is this rank's index in the core.
    Cost: if n is not a power of two, 2 more steps, each of the whole array: 2 alpha + 2 m beta + m gamma.
    """
    span = (0, len(vector))
    core_index = core_index_of(group.rank, group.size)
    if core_index is None:
        await send_pieces(group, group.rank + 1, vector, span)
        await receive_pieces(group, group.rank + 1, vector, span)
        return
    has_folded_peer = core_index < core_of(group.size)[1]
    if has_folded_peer:
        await reduce_pieces(group, group.rank - 1, vector, span, reduction=reduction)
    await work(core_index)
    if has_folded_peer:
        await send_pieces(group, group.rank - 1, vector, span)


def seconds(problem: ProblemSize, link: Links) -> float:
    """Seconds for folding in and out, if all links are this one."""
    return 2 * link.alpha + problem.nbytes * (2 * link.beta + link.gamma) if core_of(problem.size)[1] else 0.0


def steps(size: int) -> int:
    """Messages one after another for folding in and out."""
    return 2 if core_of(size)[1] else 0


def bytes_to(problem: ProblemSize, rank: int) -> dict[int, int]:
    """The whole array, once, to the other rank of the pair, if this rank is in a pair that folds in and out."""
    return {rank ^ 1: problem.nbytes} if problem.nbytes and rank < 2 * core_of(problem.size)[1] else {}
