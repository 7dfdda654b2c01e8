"""Sleep until a number in memory that processes share changes. The one rule: every sleep is bounded, and may end early.

Why not only `sched_yield`: since Linux 6.18 who yields goes behind all others by a whole slice, milliseconds, each
time; who sleeps here is woken at once. Why not a semaphore: a futex asks nothing of who finds nobody asleep. Knows no
ranks.

Source: futex(2); Franke, Russell, Kirkwood, "Fuss, Futexes and Furwocks: Fast Userlevel Locking in Linux".
"""

import ctypes
from mmap import mmap

NUMBER = 202
"""The call's number on x86-64."""
WAIT, WAKE, EVERYBODY = 0, 1, 2**31 - 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Futex:
    """Four bytes of shared memory that processes sleep on.

    Args:
        memory: maps them; stays mapped as long as this object lives.
        at: their place in it, a multiple of 4.
    """

    def __init__(self, memory: mmap, at: int):
        self._word = ctypes.c_uint32.from_buffer(memory, at)
        self._address = ctypes.byref(self._word)
        self._call = ctypes.CDLL(None).syscall

    def wait(self, seen: int, seconds: float) -> None:
        """Sleep until woken, but for so many seconds at most, and not at all if the number is another than seen."""
        most = _Timespec(int(seconds), int(seconds % 1 * 1e9))
        self._call(NUMBER, self._address, WAIT, ctypes.c_uint32(seen & 0xFFFFFFFF), ctypes.byref(most), None, 0)

    def wake(self) -> None:
        """Wake all who sleep on it, after it was changed."""
        self._call(NUMBER, self._address, WAKE, EVERYBODY, None, None, 0)
