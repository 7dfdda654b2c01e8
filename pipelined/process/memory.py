"""Keeping memory once it is there, blocks and objects. The one rule: all of it is for a process that one program owns.

glibc gives big blocks back to the kernel and asks for them again at every message. A fresh megabyte costs 256 page
faults and as many pages of zeros, more than copying it. A training step needs the same blocks over and over, so a
training process holds on to them.

Python looks through all objects for garbage now and then, and does nothing else meanwhile: beside torch's that takes 70
milliseconds, in which no message moves.
"""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST = 32 << 20
"""Bytes: the largest block glibc can be told to take from its heap."""
KEPT = (1 << 31) - 1
"""Bytes of free heap above which some is given back."""


def keep_freed() -> bool:
    """Let this process keep the memory it frees, for its next allocation; says whether the C library takes it."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST) and mallopt(M_TRIM_THRESHOLD, KEPT))


@contextmanager
def frozen_objects() -> Iterator[None]:
    """Spare the search for garbage all objects that live by now, such as modules'; what comes later is looked through.

    They are freed all the same when nothing refers to them. Where objects are frozen already nothing changes.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
