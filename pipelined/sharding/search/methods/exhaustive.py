"""Exhaustive search: every strategy is priced, in arrays of a million."""

from itertools import product
from math import inf, prod

import numpy as np

from pipelined.sharding.search.problem import ROUNDING, Numbers, Problem, SearchOutcome, Strategy

TABLE = 1 << 20
"""Strategies priced at a time: those of the last choices, for each strategy of the first."""


def search(problem: Problem, limit: float = inf, *, evaluations: int = 0, seed: int = 0) -> SearchOutcome:
    """The strategy that takes the least time among those that hold at most `limit` bytes.

    Args:
        evaluations, seed: not used; every search takes them.
    Cost: a few additions for each strategy of the space.
    """
    sizes = [len(choice.options) for choice in problem.choices]
    cut = next(index for index in range(len(sizes)) if prod(sizes[index:]) <= TABLE or index == len(sizes) - 1)
    shape = tuple(sizes[cut:])
    table = _Table(problem, cut, shape)
    best, strategy = inf, None
    for first in product(*map(range, sizes[:cut])):
        seconds = table.seconds(first)
        if limit < inf:
            seconds = np.where(table.memory_bytes(first) <= limit * ROUNDING, seconds, inf)
        index = int(np.argmin(seconds))
        if seconds.flat[index] < best:
            best = float(seconds.flat[index])
            strategy = (*first, *map(int, np.unravel_index(index, shape)))
    return SearchOutcome(strategy, best, problem.space)


class _Table:
    """Prices of all strategies of the last choices, an axis each, when the first are given."""

    def __init__(self, problem: Problem, cut: int, shape: tuple[int, ...]) -> None:
        self._problem, self._cut, self._shape = problem, cut, shape
        self._seconds = np.zeros(shape)
        self._bytes = np.full(shape, problem.fixed)
        for index in range(len(shape)):
            self._seconds = self._seconds + self._spread_over_axes(problem.single[cut + index], index)
            self._bytes = self._bytes + self._spread_over_axes(problem.choices[cut + index].memory_bytes, index)
        for (i, j), matrix in problem.pairs.items():
            if i >= cut:
                self._seconds = self._seconds + self._spread_over_axes(matrix, i - cut, j - cut)

    def seconds(self, first: Strategy) -> Numbers:
        """Seconds of a step."""
        problem, cut = self._problem, self._cut
        total = self._seconds + sum(float(problem.single[i][option]) for i, option in enumerate(first))
        for (i, j), matrix in problem.pairs.items():
            if j < cut:
                total += matrix[first[i], first[j]]
            elif i < cut:
                total += self._spread_over_axes(matrix[first[i]], j - cut)
        return total

    def memory_bytes(self, first: Strategy) -> Numbers:
        return self._bytes + sum(float(self._problem.choices[i].memory_bytes[option]) for i, option in enumerate(first))

    def _spread_over_axes(self, numbers: Numbers, *axes: int) -> Numbers:
        """An array over some of the axes, ready to be added to one over all."""
        shape = [1] * len(self._shape)
        for axis, length in zip(axes, numbers.shape, strict=True):
            shape[axis] = length
        return numbers.reshape(shape)
