"""Which sums make up exactly one global batch: each microbatch once, nothing twice. Arithmetic on sets, nothing else.

A sum cannot be taken apart, so a peer that counted a microbatch which another counted too (its answer was lost, and the
trainer went elsewhere) gives up its whole sum, and what only it had counted is computed again.
"""

from collections.abc import Mapping, Set
from typing import NamedTuple


class Cover(NamedTuple):
    """What to do with the sums of one stage's peers.

    Args:
        keep: whose sums count; no microbatch is in two of them.
        drop: who must begin again from nothing.
        missing: microbatches that nobody kept has.
    """

    keep: tuple[str, ...]
    drop: tuple[str, ...]
    missing: frozenset[int]


def cover(counted: Mapping[str, Set[int]], batch: int) -> Cover:
    """Keep as much as can be kept: the largest sums first, by name where they are equal.

    Args:
        counted: by peer, the indices that its sum holds.
        batch: microbatches of a step; their indices are 0 … batch-1.
    Cost: O(peers log peers + indices).
    """
    keep, drop, have = [], [], set[int]()
    wanted = set(range(batch))
    for name in sorted(counted, key=lambda name: (-len(counted[name]), name)):
        fits = have.isdisjoint(counted[name]) and counted[name] <= wanted
        (keep if fits else drop).append(name)
        if fits:
            have |= counted[name]
    return Cover(tuple(sorted(keep)), tuple(sorted(drop)), frozenset(wanted - have))
