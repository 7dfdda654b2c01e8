"""The table of all-reduce algorithms. An algorithm is one file of this folder; its name is the file's name.

Each file defines

    async def all_reduce(group, vector, reduction)           reduces in place, inside the group's turn
    def cost(size, nbytes, alpha, beta, gamma)               seconds, by the model of `Links`

if its price depends on which ranks share a node,

    def price(nodes, nbytes, links)                          seconds; used instead of `cost` with the slowest links

and, if the algorithm has closed forms,

    def steps(size)                                          messages one after another that the last rank waits for
    def bytes_to(size, rank, nbytes, itemsize=1)             exact bytes that one rank sends to each peer; no zeros

A choice of algorithms is a text: one algorithm for all arrays, `ring`, or one for each size in bytes,
`rabenseifner:16384,shared:1048576,ring`. The text is complete, so a measured choice can be passed as a flag or saved in
a checkpoint.
"""

import functools
import importlib
from collections.abc import Mapping
from functools import lru_cache
from itertools import groupby, pairwise
from math import inf
from types import ModuleType

ALGORITHMS = {
    "auto": "collectives.algorithms.all_reduce.auto",
    "hierarchical": "collectives.algorithms.all_reduce.hierarchical",
    "multi_ring": "collectives.algorithms.all_reduce.multi_ring",
    "native": "collectives.algorithms.all_reduce.native",
    "rabenseifner": "collectives.algorithms.all_reduce.rabenseifner",
    "recursive_doubling": "collectives.algorithms.all_reduce.recursive_doubling",
    "ring": "collectives.algorithms.all_reduce.ring",
    "shared": "collectives.algorithms.all_reduce.shared",
}
"""The module of each algorithm, by name; imported at its first use. A new algorithm gets a line here."""


@functools.cache
def algorithms() -> tuple[str, ...]:
    """The names of all algorithms, sorted."""
    return tuple(sorted(ALGORITHMS))


@functools.cache
def module_of(name: str) -> ModuleType:
    """The module of this algorithm, which defines the functions above.

    Raises:
        ValueError: an unknown algorithm; the known ones are listed.
    """
    if name not in ALGORITHMS:
        raise ValueError(f"unknown all-reduce algorithm {name!r}; known: {', '.join(algorithms())}")
    return importlib.import_module(ALGORITHMS[name])


Choice = tuple[tuple[float, str], ...]
EXAMPLE = "write for example recursive_doubling:16384,ring"


@lru_cache(maxsize=64)
def parse_choice(choice: str) -> Choice:
    """The largest array, in bytes, for which each algorithm is used, ascending; the last one has no limit.

    Raises:
        ValueError: an unknown algorithm (the known are listed), or sizes that do not rise.
    """
    *sized, last = choice.split(",")
    found = (*map(_sized, sized), (inf, last))
    for (below, _), (most, _) in pairwise(found):
        if below >= most:
            raise ValueError(f"sizes that do not rise in {choice!r} (bytes: {below:.0f}, then {most:.0f}); {EXAMPLE}")
    for _, name in found:
        module_of(name)
    return found


def algorithm_for(choice: str, nbytes: int) -> str:
    """The name of the algorithm for an array of `nbytes`."""
    return next(name for most, name in parse_choice(choice) if nbytes <= most)


def names_in(choice: str) -> set[str]:
    """All algorithms that the text names."""
    return {name for _, name in parse_choice(choice)}


def format_choice(best: Mapping[int, str]) -> str:
    """The text for one or more algorithms by bytes: each is used above the previous size, up to its own size."""
    runs = [list(run) for _, run in groupby(sorted(best.items()), key=lambda item: item[1])]
    return ",".join([*(f"{name}:{nbytes}" for *_, (nbytes, name) in runs[:-1]), runs[-1][0][1]])


def _sized(part: str) -> tuple[float, str]:
    name, _, size = part.partition(":")
    if not (size.isascii() and size.isdecimal()):
        raise ValueError(f"missing size limit for {name or 'an algorithm'} (got: {part!r}); {EXAMPLE}")
    return int(size), name
