"""Random search: the best of independent draws."""

from math import inf
from random import Random

from pipelined.sharding.search.problem import ROUNDING, Problem, SearchOutcome, Strategy

EVALUATIONS = 2000
"""Strategies that a random search prices, by default."""


def search(problem: Problem, limit: float = inf, *, evaluations: int = EVALUATIONS, seed: int = 0) -> SearchOutcome:
    """The best strategy of `evaluations` draws, among those that hold at most `limit` bytes."""
    random = Random(seed)
    strategy = None
    best = inf
    for _ in range(evaluations):
        drawn = draw_strategy(problem, random, limit)
        seconds = inf if drawn is None else problem.seconds(drawn)
        if seconds < best:
            strategy, best = drawn, seconds
    return SearchOutcome(strategy, best, evaluations)


def draw_strategy(problem: Problem, random: Random, limit: float) -> Strategy | None:
    """A random strategy; if it holds too much, the one that holds the least; None if that holds too much, too."""
    drawn = tuple(random.randrange(len(choice.options)) for choice in problem.choices)
    for strategy in (drawn, problem.min_memory):
        if problem.memory_bytes(strategy) <= limit * ROUNDING:
            return strategy
    return None
