"""The cores that the ranks of one machine may run on; a launcher may bind each rank to cores of its own."""

import os
from collections.abc import Iterable
from functools import reduce
from operator import or_

MASK_BYTES = 1024
"""The length of a mask, with a bit for each of the 8,192 cores that Linux supports at most."""


def own_cores() -> set[int]:
    """The numbers of the cores that this process may run on; all of them on systems other than Linux."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def own_mask() -> bytes:
    """The cores that this process may run on, one bit each."""
    mask = sum(1 << core for core in own_cores())
    return mask.to_bytes(MASK_BYTES, "little")


def count_cores(masks: Iterable[bytes]) -> int:
    """The number of distinct cores in the masks of several processes."""
    return reduce(or_, (int.from_bytes(mask, "little") for mask in masks)).bit_count()
