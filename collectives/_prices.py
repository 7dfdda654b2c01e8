"""What every all-reduce takes on a group, as measured there: alpha and beta fitted anew between every two lengths.

One line for all lengths would be the model of `Links`, which caches, eager messages and shared memory break. The one
rule: all ranks hold equal prices, bit by bit, so that all choose alike.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter

import numpy as np

from collectives._group import Group
from collectives.all_reduce import algorithms, all_reduce
from collectives.barrier import barrier

LENGTHS = (1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
"""Bytes at which algorithms are timed."""
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds by algorithm and bytes.

    Args:
        points: for each algorithm, (bytes, seconds) in order of bytes, two or more.
    """

    points: Mapping[str, Sequence[tuple[int, float]]]

    def price(self, name: str, nbytes: int) -> float:
        """Seconds by the alpha and beta of the two points around; beyond the last, by those of the last two."""
        points = self.points[name]
        (low, start), (high, stop) = next(
            (pair for pair in pairwise(points) if nbytes <= pair[1][0]), (points[-2], points[-1])
        )
        beta = max(0.0, (stop - start) / (high - low))
        return start + max(0, nbytes - low) * beta

    def cheapest(self, nbytes: int) -> str:
        """The algorithm that takes least; of equals, the first by name."""
        return min(sorted(self.points), key=lambda name: self.price(name, nbytes))


async def measure(
    group: Group, lengths: Sequence[int] = LENGTHS, rounds: int = ROUNDS, clock: Callable[[], float] = perf_counter
) -> Prices:
    """Time every algorithm that these ranks can run; `auto` goes by it once it is the group's `prices`.

    All ranks of the group call this together, with nothing else under way.

    Args:
        lengths: bytes, two or more, in order; multiples of 4.
        rounds: in each, all algorithms take their turns at all lengths; the median of a round's slowest rank counts.
    """
    names = await runnable(group)
    taken = np.zeros((rounds, len(names), len(lengths)))
    for turn in range(rounds):
        for column, nbytes in enumerate(lengths):
            for row, name in enumerate(names):
                taken[turn, row, column] = await _timed(group, name, nbytes, clock)
    await all_reduce(group, taken, "max", "ring")
    middle = np.median(taken, axis=0)
    told = {name: tuple(zip(lengths, map(float, middle[row]), strict=True)) for row, name in enumerate(names)}
    return Prices(told)


async def runnable(group: Group) -> list[str]:
    """The algorithms that these ranks can run for every dtype, all ranks alike."""
    async with group.calling("which algorithms there are"):
        shared = await group.shared() is not None
        await group.meet()
    lacking = {"auto", "native"}  # a transport's own knows fewer dtypes
    lacking |= set() if shared else {"shared"}
    lacking |= set() if len(set(group.nodes)) > 1 else {"hierarchical"}
    return [name for name in algorithms() if name not in lacking]


async def _timed(group: Group, name: str, nbytes: int, clock: Callable[[], float]) -> float:
    array = np.full(nbytes // 4, 1.0 + group.rank, np.float32)
    await barrier(group)
    start = clock()
    await all_reduce(group, array, "sum", name)
    return clock() - start
