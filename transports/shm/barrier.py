"""A barrier of a group's ranks in shared memory: each rank's window, its count of meetings, and a futex to sleep on.

    byte 0       64           128       192       4096
    token        meetings     sleep     over      window

Each byte has one writer, its owner. The exception is `over`, the number of meetings that are over, in the first rank's
memory: any rank that sees that all have come writes it; if several do, they write the same value. A rank that sleeps
waits for `over`, so that the last rank to come wakes it once.

What a rank wrote before it came to a meeting is visible to every rank that saw it come, because these processors keep
the order of a rank's writes. A processor that does not (ARM's) must not use this module: see `KEEPS_ORDER`.

Why not only `sched_yield`: since Linux 6.18 a rank that yields goes behind all others by a whole slice, milliseconds,
each time; a rank that sleeps on a futex is woken at once. Why not a semaphore: waking a futex on which no rank sleeps
costs nothing at the sleepers' end.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 3, section 9.2.2; futex(2); Franke,
Russell, Kirkwood, "Fuss, Futexes and Furwocks: Fast Userlevel Locking in Linux".
"""

import ctypes
import os
import platform
import threading
from collections.abc import Sequence
from enum import IntEnum
from mmap import mmap
from time import perf_counter

from transports.shm.memfd import Lent, mapped

FUTEX_CALL = 202
"""The number of the system call on x86-64."""
WAIT, WAKE, ALL = 0, 1, 2**31 - 1


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
        """Sleep until woken, for at most this many seconds; return at once if the number is not `seen`."""
        most = _Timespec(int(seconds), int(seconds % 1 * 1e9))
        self._call(FUTEX_CALL, self._address, WAIT, ctypes.c_uint32(seen & 0xFFFFFFFF), ctypes.byref(most), None, 0)

    def wake(self) -> None:
        """Wake every process that sleeps on it; call this after changing the number."""
        self._call(FUTEX_CALL, self._address, WAKE, ALL, None, None, 0)


MEETINGS, SLEEP, OVER = 64, 128, 192
HEAD = 4096
KEEPS_ORDER = platform.machine() in ("x86_64", "AMD64")
LOOKS, YIELDS = 4, 100
"""How often a rank looks before it asks for the time; and how often, before it naps, it only lets others have its core.

With 4 ranks on 2 cores a sum of 1 KiB takes 175 us without a yield and 57 with 100, one of 256 KiB 142 with 40 and
132 with 100. A rank that yields without end makes the other tasks of its loop wait for 17 ms, one that naps after 100
yields for up to 4.
"""


class Sleep(IntEnum):
    """How a rank waits; the last rank to come reads it."""

    NONE = 0  # it looks
    NAP = 1  # in the middle of a look, until the meeting is over
    DEEP = 2  # and only a doorbell wakes it


class Windows:
    """All windows of a group, as one of its ranks maps them.

    Args:
        lent: this rank's memory, of `HEAD` bytes and the window's.
        addresses: where the ranks' memory is, in the group's order.
        rank: this rank's place among them.
    Attributes:
        windows: one a rank; only this rank's own may be written.
        meetings: how many this rank has come to.
    Raises:
        OSError: one of them cannot be mapped.
    """

    def __init__(self, lent: Lent, addresses: Sequence[bytes], rank: int):
        nbytes = len(lent.memory)
        maps = [lent.memory if at == rank else mapped(address, nbytes) for at, address in enumerate(addresses)]
        self.windows = [memoryview(shared)[HEAD:] for shared in maps]
        counters = [_count(shared, MEETINGS) for shared in maps]
        self._over = _count(maps[0], OVER)
        self._futex = Futex(maps[0], OVER)  # on the count's lower half, as processors here order bytes
        self._mine, self._my_sleep = counters.pop(rank), maps.pop(rank)
        self._others, self._sleeps = counters, maps
        self._fence = threading.Lock()
        self.meetings = 0

    def come(self) -> int | None:
        """Announce this rank: it has written its window for this meeting, and read what it wanted of the last one.

        Returns: as `met` does; None: this rank may be the last, and must `wake` the others.
        """
        self.meetings += 1
        self._mine[0] = self.meetings
        self._settle()
        return self.met()

    def wake(self) -> list[int]:
        """Wake the ranks that nap, once all have come; returns the others that sleep deeply, for a doorbell to wake.

        A rank that falls asleep too late to be seen here sees that this rank has come: that write was settled before.
        """
        self._over[0] = self.meetings
        for sleep in self._sleeps:
            if sleep[SLEEP]:
                return self._roused()
        return []

    def _roused(self) -> list[int]:
        sleeps = [sleep[SLEEP] for sleep in self._sleeps]
        if Sleep.NAP in sleeps:
            self._futex.wake()
        return [at for at, sleep in enumerate(sleeps) if sleep == Sleep.DEEP]

    def sleeping(self, at: int) -> int:
        """How that one of the others waits."""
        return self._sleeps[at][SLEEP]

    def sleep(self, sleep: Sleep) -> None:
        """Announce how this rank waits; after announcing sleep, look once more."""
        self._my_sleep[SLEEP] = sleep
        self._settle()

    def _settle(self) -> None:
        """Order an earlier write before every later read, which processors may swap; the instruction of a lock does."""
        with self._fence:
            pass

    def met(self, place: int = 0) -> int | None:
        """The first of the others, from `place` on, that has not come to this meeting yet; None if all have."""
        due, others = self.meetings, self._others
        for at in range(place, len(others)):
            if others[at][0] < due:
                return at
        return None

    def watch(self, seconds: float, crowded: bool) -> int | None:
        """Look for at most this many seconds, or until all have come; returns as `met` does.

        Args:
            crowded: whether others may need this core to come at all, so that this rank naps between two looks.
        """
        absent = self.met()
        if absent is None:
            return None
        end, yields = perf_counter() + seconds, YIELDS if crowded else 0
        while True:
            for _ in range(LOOKS):
                absent = self.met(absent)
                if absent is None:
                    return None
            left = end - perf_counter()
            if left <= 0:
                return absent
            if yields:
                yields -= 1
                os.sched_yield()
            elif crowded:
                self._nap(absent, left)

    def _nap(self, absent: int, seconds: float) -> None:
        """Sleep until the meeting is over; a late wake-up for the last meeting ends the nap too."""
        self.sleep(Sleep.NAP)
        over = self._over[0]
        if self.met(absent) is not None:
            self._futex.wait(over, seconds)
        self._my_sleep[SLEEP] = Sleep.NONE


def _count(shared: mmap, at: int) -> memoryview:
    return memoryview(shared)[at : at + 8].cast("Q")
