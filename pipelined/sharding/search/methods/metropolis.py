"""Metropolis-Hastings: one choice changes at random; a worse strategy is accepted, the less often the more it costs.

Source: Hastings, 1970; AutoDDL, section 4.6.
"""

from math import exp, inf
from random import Random

from pipelined.sharding.search.methods.random import EVALUATIONS, draw_strategy
from pipelined.sharding.search.problem import ROUNDING, Problem, SearchOutcome

TEMPERATURE = 1 / 50
"""As a share of the time of the strategy at hand: one that takes 2 % longer is accepted with probability 1/e."""


def search(problem: Problem, limit: float = inf, *, evaluations: int = EVALUATIONS, seed: int = 0) -> SearchOutcome:
    """The best strategy that a walk of `evaluations` steps met, among those that hold at most `limit` bytes."""
    random = Random(seed)
    current = draw_strategy(problem, random, limit)
    if current is None:
        return SearchOutcome(None, inf, 1)
    seconds = problem.seconds(current)
    strategy, best = current, seconds
    for _ in range(evaluations - 1):
        index = random.randrange(len(current))
        option = random.randrange(len(problem.choices[index].options))
        proposed = (*current[:index], option, *current[index + 1 :])
        if problem.memory_bytes(proposed) > limit * ROUNDING:
            continue
        proposed_s = problem.seconds(proposed)
        if proposed_s <= seconds or random.random() < exp((seconds - proposed_s) / (seconds * TEMPERATURE or 1.0)):
            current, seconds = proposed, proposed_s
        if seconds < best:
            strategy, best = current, seconds
    return SearchOutcome(strategy, best, evaluations)
