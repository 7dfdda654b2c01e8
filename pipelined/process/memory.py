"""Settings of a training process that keep freed memory, and exclude old objects from garbage collection.

They affect the whole process, so only a program that owns its process may use them.

glibc returns big blocks to the kernel and requests them again for every message. A fresh megabyte costs 256 page faults
and as many zeroed pages, which is more than copying it. A training step needs the same blocks again and again, so a
training process keeps them.

Python's garbage collector sometimes examines all objects and stops everything else: with torch loaded this takes 70
milliseconds, in which no message is sent or received.
"""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MAX_THRESHOLD = 32 << 20
"""Bytes of the largest block that glibc can be set to allocate from its heap."""
KEPT = (1 << 31) - 1
"""Bytes of free heap above which glibc returns memory to the kernel."""


def keep_freed() -> bool:
    """Make this process keep the memory that it frees; returns whether the C library supports that."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, MAX_THRESHOLD) and mallopt(M_TRIM_THRESHOLD, KEPT))


@contextmanager
def frozen_objects() -> Iterator[None]:
    """Exclude all objects that exist now, such as those of modules, from garbage collection inside the block.

    They are still freed when their reference count falls to zero. If objects are frozen already, nothing changes.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
