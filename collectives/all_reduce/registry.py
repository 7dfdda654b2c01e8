"""The table of all-reduce algorithms. An algorithm is one file of this folder; the file's name is the algorithm's.

Each of them defines

    async def all_reduce(group, vector, reduction)           reduces in place, inside the group's turn
    def cost(size, nbytes, alpha, beta, gamma)               seconds, by the model of `Links`

where its price depends on which ranks share a node,

    def price(nodes, nbytes, links)                          seconds, instead of `cost` with the worst of the links

and, where the algorithm has closed forms,

    def steps(size)                                          messages one after another that the last rank waits for
    def bytes_to(size, rank, nbytes, itemsize=1)             bytes one rank sends to each peer, exactly; no zeros in it
"""

import functools
import importlib
from types import ModuleType

ALGORITHMS = {
    "auto": "collectives.all_reduce.auto",
    "hierarchical": "collectives.all_reduce.hierarchical",
    "multi_ring": "collectives.all_reduce.multi_ring",
    "native": "collectives.all_reduce.native",
    "rabenseifner": "collectives.all_reduce.rabenseifner",
    "recursive_doubling": "collectives.all_reduce.recursive_doubling",
    "ring": "collectives.all_reduce.ring",
    "shared": "collectives.all_reduce.shared",
}
"""The module of each algorithm, by its name; imported when it is first asked for. A new algorithm gets a line here."""


@functools.cache
def algorithms() -> tuple[str, ...]:
    """The names of all algorithms, sorted."""
    return tuple(sorted(ALGORITHMS))


@functools.cache
def known(name: str) -> ModuleType:
    """The algorithm of this name: a module as this file describes it.

    Raises:
        ValueError: there is none; the known ones are listed.
    """
    if name not in ALGORITHMS:
        raise ValueError(f"unknown all-reduce algorithm {name!r}; known: {', '.join(algorithms())}")
    return importlib.import_module(ALGORITHMS[name])
