"""Which algorithms there are: the files of this folder without a leading underscore. There is no registry.

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
import pkgutil
from pathlib import Path
from types import ModuleType


@functools.cache
def algorithms() -> tuple[str, ...]:
    """The names of all algorithms, sorted."""
    found = pkgutil.iter_modules([str(Path(__file__).parent)])
    return tuple(sorted(module.name for module in found if not module.name.startswith("_")))


@functools.cache
def known(name: str) -> ModuleType:
    """The algorithm of this name: a module as this file describes it.

    Raises:
        ValueError: there is none; the known ones are listed.
    """
    if name not in algorithms():
        raise ValueError(f"unknown all-reduce algorithm {name!r}; known: {', '.join(algorithms())}")
    return importlib.import_module(f"{__package__}.{name}")
