"""Coordinate descent: each choice in turn takes its best option, until none does better; then again from elsewhere.

Source: Wright, Coordinate descent algorithms, 2015; AutoDDL, section 4.6.
"""

from math import inf
from random import Random

import numpy as np

from pipelined.sharding.search.methods.random import EVALUATIONS, draw_strategy
from pipelined.sharding.search.problem import ROUNDING, Problem, SearchOutcome, Strategy


def search(problem: Problem, limit: float = inf, *, evaluations: int = EVALUATIONS, seed: int = 0) -> SearchOutcome:
    """The best strategy of descents that price `evaluations` strategies together, and the last one to its end.

    Args:
        limit: bytes that a strategy may hold.
    """
    random = Random(seed)
    best = SearchOutcome(None, inf, 0)
    evaluated = 0
    while evaluated < evaluations:
        start = draw_strategy(problem, random, limit)
        if start is None:
            return SearchOutcome(None, inf, evaluated + 1)
        strategy, priced = _descend(problem, start, limit)
        evaluated += priced
        if (seconds := problem.seconds(strategy)) < best.seconds:
            best = SearchOutcome(strategy, seconds, evaluated)
    return best._replace(evaluated=evaluated)


def _descend(problem: Problem, strategy: Strategy, limit: float) -> tuple[Strategy, int]:
    """The fixed point that a strategy leads to, and the number of strategies priced on the way."""
    priced, improved = 0, True
    while improved:
        improved = False
        for index, choice in enumerate(problem.choices):
            seconds = problem.costs_of_choice(strategy, index)
            memory = problem.memory_bytes(strategy) - choice.memory_bytes[strategy[index]] + choice.memory_bytes
            option = int(np.argmin(np.where(memory <= limit * ROUNDING, seconds, inf)))
            priced += len(choice.options)
            if seconds[option] < seconds[strategy[index]] / ROUNDING:
                strategy, improved = (*strategy[:index], option, *strategy[index + 1 :]), True
    return strategy, priced
