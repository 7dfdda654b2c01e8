"""The table of searches."""

from importlib import import_module
from math import inf
from typing import Protocol

from pipelined.sharding.search.problem import Problem, SearchOutcome

SEARCHES = {
    "dynamic": "pipelined.sharding.search.methods.dynamic",
    "exhaustive": "pipelined.sharding.search.methods.exhaustive",
    "metropolis": "pipelined.sharding.search.methods.metropolis",
    "descent": "pipelined.sharding.search.methods.descent",
    "random": "pipelined.sharding.search.methods.random",
}
"""The module of each search, by name (its file's name). A new search gets a line here."""


class Search(Protocol):
    """The function that the module of a search defines."""

    def search(self, problem: Problem, limit: float = inf, *, evaluations: int = ..., seed: int = 0) -> SearchOutcome:
        """The best strategy that it sees among those that hold at most `limit` bytes."""


def find(name: str) -> Search:
    return import_module(SEARCHES[name])
