"""A choice of all-reduce algorithms as a text: one algorithm for all arrays, `ring`, or one for each size in bytes,
`rabenseifner:16384,shared:1048576,ring`. The text is complete, so a measured choice can be passed as a flag or saved in
a checkpoint.
"""

from collections.abc import Mapping
from functools import lru_cache
from itertools import groupby, pairwise
from math import inf

from collectives.algorithms.registry import ALL_REDUCE, AUTO

AlgorithmChoice = tuple[tuple[float, str], ...]
EXAMPLE = "write for example recursive_doubling:16384,ring"


@lru_cache(maxsize=64)
def parse_choice(choice: str) -> AlgorithmChoice:
    """The largest array, in bytes, for which each algorithm is used, ascending; the last one has no limit.

    Raises:
        ValueError: an unknown algorithm (the known are listed), no size limit, or limits that do not rise.
    """
    *sized_parts, last_name = choice.split(",")
    choices = (*map(_sized, sized_parts), (inf, last_name))
    for (smaller_bytes, _), (max_bytes, _) in pairwise(choices):
        if smaller_bytes >= max_bytes:
            fact = f"sizes that do not rise in {choice!r} (bytes: {smaller_bytes:.0f}, then {max_bytes:.0f})"
            raise ValueError(f"{fact}; {EXAMPLE}")
    for _, name in choices:
        ALL_REDUCE.check(name)
    return choices


def algorithm_for(choice: str, nbytes: int) -> str:
    """The name of the algorithm for an array of `nbytes`."""
    return next(name for max_bytes, name in parse_choice(choice) if nbytes <= max_bytes)


def names_in(choice: str) -> set[str]:
    """All algorithms that the text names."""
    return {name for _, name in parse_choice(choice)}


def may_share_memory(choice: str) -> bool:
    """Whether the text names `shared`, or leaves the choice of it to `auto`."""
    return not names_in(choice).isdisjoint({AUTO, "shared"})


def format_choice(names_by_bytes: Mapping[int, str]) -> str:
    """The text for one or more algorithms by bytes: each is used above the previous size, up to its own size."""
    runs = [list(run) for _, run in groupby(sorted(names_by_bytes.items()), key=lambda item: item[1])]
    return ",".join([*(f"{name}:{nbytes}" for *_, (nbytes, name) in runs[:-1]), runs[-1][0][1]])


def _sized(part: str) -> tuple[float, str]:
    name, _, size = part.partition(":")
    if not (size.isascii() and size.isdecimal() and len(size) <= 18):
        algorithm = name or "an algorithm"
        raise ValueError(f"no size limit of 1 to 18 digits for {algorithm} (got: {part[:64]!r}); {EXAMPLE}")
    return int(size), name
