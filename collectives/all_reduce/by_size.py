"""Algorithms in words: one for all arrays, `ring`, or one for each size, `rabenseifner:16384,shared:1048576,ring`.

The one rule: the words say all there is, so that what was measured once can be said again, by a person or a checkpoint.
Knows names and numbers.
"""

from collections.abc import Mapping
from functools import lru_cache
from itertools import groupby, pairwise
from math import inf

from collectives.all_reduce.registry import known

Choices = tuple[tuple[float, str], ...]
EXAMPLE = "write for example recursive_doubling:16384,ring"


@lru_cache(maxsize=64)
def choices(words: str) -> Choices:
    """Up to how many bytes each algorithm is taken, in order; the last one beyond all of them.

    Raises:
        ValueError: an unknown algorithm (the known are listed), or sizes that do not rise.
    """
    *sized, last = words.split(",")
    found = (*map(_sized, sized), (inf, last))
    for (below, _), (most, _) in pairwise(found):
        if below >= most:
            raise ValueError(f"sizes that do not rise in {words!r} (bytes: {below:.0f}, then {most:.0f}); {EXAMPLE}")
    for _, name in found:
        known(name)
    return found


def algorithm_for(words: str, nbytes: int) -> str:
    """The name of the algorithm that an array of so many bytes is reduced by."""
    return next(name for most, name in choices(words) if nbytes <= most)


def names_in(words: str) -> set[str]:
    """All algorithms that the words name."""
    return {name for _, name in choices(words)}


def in_words(best: Mapping[int, str]) -> str:
    """The words for these algorithms by bytes, one or more: each is taken from beyond the size before up to its own."""
    runs = [list(run) for _, run in groupby(sorted(best.items()), key=lambda item: item[1])]
    return ",".join([*(f"{name}:{nbytes}" for *_, (nbytes, name) in runs[:-1]), runs[-1][0][1]])


def _sized(part: str) -> tuple[float, str]:
    name, _, size = part.partition(":")
    if not (size.isascii() and size.isdecimal()):
        raise ValueError(f"no bytes up to which {name or 'an algorithm'} is taken (got: {part!r}); {EXAMPLE}")
    return int(size), name
