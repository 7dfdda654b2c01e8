"""The windows of a group in shared memory, and its barrier: each rank's window and barrier count, and a futex.

    byte 0       64           128       192         4096
    token        epoch        sleep     completed   window

Each byte has one writer, its owner. The exception is `completed`, the number of completed barriers, in the first rank's
memory: the rank that observes the last arrival writes it; if several ranks do, they write the same value. A sleeping
rank waits for it to change, so the last rank to arrive wakes all sleepers with one call.

What a rank writes before it arrives at a barrier is visible to every rank that has seen its arrival, because x86-64
processors keep the order of a core's writes. Processors that do not (ARM) must not use this (`TOTAL_STORE_ORDER`).

Why not only `sched_yield`: since Linux 6.18 a rank that yields goes behind all others for a whole slice (milliseconds)
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

from transports.shm.memfd import MemoryFile, map_memory

FUTEX_CALL = 202
"""The number of the system call on x86-64."""
WAIT = 0
WAKE = 1
ALL = 2**31 - 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Futex:
    """Four bytes of shared memory that processes sleep on.

    Args:
        memory: the mapping that holds them; stays mapped while this object exists.
        offset: where in it, a multiple of 4.
    """

    def __init__(self, memory: mmap, offset: int):
        self._word = ctypes.c_uint32.from_buffer(memory, offset)
        self._pointer = ctypes.byref(self._word)
        self._call = ctypes.CDLL(None).syscall

    def wait(self, value: int, seconds: float) -> None:
        """Sleep until woken, at most this many seconds; return at once if the word has another value."""
        timeout = _Timespec(int(seconds), int(seconds % 1 * 1e9))
        self._call(FUTEX_CALL, self._pointer, WAIT, ctypes.c_uint32(value & 0xFFFFFFFF), ctypes.byref(timeout), None, 0)

    def wake(self) -> None:
        """Wake every process that sleeps on the futex; call this after changing the value."""
        self._call(FUTEX_CALL, self._pointer, WAKE, ALL, None, None, 0)


EPOCH, SLEEP, COMPLETED = 64, 128, 192
HEADER_BYTES = 4096
TOTAL_STORE_ORDER = platform.machine() in ("x86_64", "AMD64")
CHECKS_PER_CLOCK_READ, YIELDS = 4, 100
"""How often a rank checks before it reads the clock; and how often it yields its core before it naps.

With 4 ranks on 2 cores, a sum of 1 KiB takes 175 µs without yields and 57 µs with 100; a sum of 256 KiB takes 142 µs
with 40 and 132 µs with 100. A rank that yields without end delays the other tasks of its loop by 17 ms; a rank that
naps after 100 yields, by up to 4 ms.
"""


class WaitState(IntEnum):
    """The way in which a rank waits; the last rank to arrive reads it."""

    NONE = 0  # awake, checking the counts
    NAP = 1  # on the futex, until the barrier is over
    ASLEEP = 2  # only a doorbell wakes it


class MappedWindows:
    """All windows of a group, mapped by one of its ranks.

    Args:
        own_memory: this rank's memory: `HEADER_BYTES` bytes, then its window.
        handles: the handles of the ranks' memory, in the group's order.
        rank: this rank's index among them.
    Attributes:
        windows: one for each rank; this rank may write only its own.
        epoch: how many barriers this rank has arrived at.
    Raises:
        OSError: a rank's memory cannot be mapped.
    """

    def __init__(self, own_memory: MemoryFile, handles: Sequence[bytes], rank: int):
        nbytes = len(own_memory.memory)
        maps = [
            own_memory.memory if index == rank else map_memory(handle, nbytes) for index, handle in enumerate(handles)
        ]
        self.windows = [memoryview(shared)[HEADER_BYTES:] for shared in maps]
        counters = [_count(shared, EPOCH) for shared in maps]
        self._completed = _count(maps[0], COMPLETED)
        self._futex = Futex(maps[0], COMPLETED)  # the lower half of the count: x86-64 is little-endian
        self._own_counter, self._own_sleep = counters.pop(rank), maps.pop(rank)
        self._other_counters, self._sleeps = counters, maps
        self._fence = threading.Lock()
        self.epoch = 0

    def arrive(self) -> int | None:
        """Announce the arrival of this rank: its window is written, and it no longer reads the others' previous data.

        Returns: as `first_missing`. None: this rank may be the last, and must call `wake`.
        """
        self.epoch += 1
        self._own_counter[0] = self.epoch
        self._order_memory()
        return self.first_missing()

    def wake(self) -> list[int]:
        """Wake the napping ranks, once all have arrived. Returns the ranks that are asleep and need a doorbell.

        If a rank announces sleep after this check, its own re-check finds this rank's arrival (`arrive` ordered it).
        """
        self._completed[0] = self.epoch
        for sleep in self._sleeps:
            if sleep[SLEEP]:
                return self._wake_sleepers()
        return []

    def _wake_sleepers(self) -> list[int]:
        sleeps = [sleep[SLEEP] for sleep in self._sleeps]
        if WaitState.NAP in sleeps:
            self._futex.wake()
        return [index for index, sleep in enumerate(sleeps) if sleep == WaitState.ASLEEP]

    def sleep(self, sleep: WaitState) -> None:
        """Announce how this rank waits; after announcing sleep, the caller checks once more before it sleeps."""
        self._own_sleep[SLEEP] = sleep
        self._order_memory()

    def _order_memory(self) -> None:
        """A memory fence: order earlier writes before later reads. A lock's atomic instruction does this."""
        with self._fence:
            pass

    def first_missing(self, start: int = 0) -> int | None:
        """The index, from `start` on, of the first other rank that is missing at this barrier; None if all are here."""
        epoch, counters = self.epoch, self._other_counters
        for index in range(start, len(counters)):
            if counters[index][0] < epoch:
                return index
        return None

    def poll_for(self, seconds: float, oversubscribed: bool) -> int | None:
        """Check the counts until all have arrived, at most this many seconds. Returns as `first_missing`.

        Args:
            oversubscribed: whether other ranks may need this core; this rank then yields and naps between checks.
        """
        missing = self.first_missing()
        if missing is None:
            return None
        deadline = perf_counter() + seconds
        yields = YIELDS if oversubscribed else 0
        while True:
            for _ in range(CHECKS_PER_CLOCK_READ):
                missing = self.first_missing(missing)
                if missing is None:
                    return None
            remaining_s = deadline - perf_counter()
            if remaining_s <= 0:
                return missing
            if yields:
                yields -= 1
                os.sched_yield()
            elif oversubscribed:
                self._nap(missing, remaining_s)

    def _nap(self, missing: int, seconds: float) -> None:
        """Sleep until the barrier is over; a late wake-up from the previous barrier also ends the nap."""
        self.sleep(WaitState.NAP)
        completed = self._completed[0]
        if self.first_missing(missing) is not None:
            self._futex.wait(completed, seconds)
        self._own_sleep[SLEEP] = WaitState.NONE


def _count(shared: mmap, offset: int) -> memoryview:
    return memoryview(shared)[offset : offset + 8].cast("Q")
