"""Keeping memory once it is there: glibc gives big blocks back to the kernel and asks for them again at every message.

A fresh megabyte costs 256 page faults and as many pages of zeros, more than copying it. A training step needs the same
blocks over and over, so a training process holds on to them.
"""

import ctypes

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
