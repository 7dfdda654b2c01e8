"""The windows of a group's ranks, and how many meetings each has come to, in memory that all of them map.

    byte 0       64           128       192       4096
    token        meetings     sleep     over      window

The one rule: each byte has one writer, its owner. But how many meetings are over, in the first rank's memory, is
written by whoever sees that all have come; if several do, they write the same. What a rank wrote before it came to a
meeting is seen by all who saw it come, as processors keep a rank's writes in order; one that does not (ARM's) must not
use this. Knows neither transport nor event loop.

Why `over`: who naps does so until the meeting is over, and is woken once, by the last who comes, not by each.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 3, section 9.2.2.
"""

import os
import platform
import threading
from collections.abc import Sequence
from enum import IntEnum
from mmap import mmap
from time import perf_counter

from transports.shm.futex import Futex
from transports.shm.memfd import Lent, mapped

MEETINGS, SLEEP, OVER = 64, 128, 192
HEAD = 4096
KEEPS_ORDER = platform.machine() in ("x86_64", "AMD64")
LOOKS, YIELDS = 4, 100
"""How often a rank looks before it asks for the time; and how often, before it naps, it only lets others have its core.

With 4 ranks on 2 cores a sum of 1 KiB takes 175 us without a yield and 57 with 100, one of 256 KiB 142 with 40 and
132 with 100; who yields without end lets the other tasks of its loop wait for 17 ms, who naps after 100 for up to 4.
"""


class Sleep(IntEnum):
    """How a rank waits, for whoever comes last."""

    NONE = 0  # it looks
    NAP = 1  # in the middle of a look, until the meeting is over
    DEEP = 2  # and only a bell wakes it


class Windows:
    """All windows of a group, as one of its ranks sees them.

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
        """This rank has written what it lends at this meeting, and read what it wanted of the last one.

        Returns: as `met` does; None: this rank may be the last, and must `wake` the others.
        """
        self.meetings += 1
        self._mine[0] = self.meetings
        self._settle()
        return self.met()

    def wake(self) -> list[int]:
        """All have come: wake who naps; which of the others sleep deeply, and are to be rung.

        Who falls asleep too late to be seen here sees that this rank has come, as that was settled before.
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
        """Say how this rank waits; who falls asleep looks once more after that."""
        self._my_sleep[SLEEP] = sleep
        self._settle()

    def _settle(self) -> None:
        """Let no later look overtake an earlier write, as processors else do: a lock's instruction waits for it."""
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
        """Look for so long, or until all have come; returns as `met` does.

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
        """Sleep until the meeting is over; who ended the last one may be about to say so, which ends a nap as well."""
        self.sleep(Sleep.NAP)
        over = self._over[0]
        if self.met(absent) is not None:
            self._futex.wait(over, seconds)
        self._my_sleep[SLEEP] = Sleep.NONE


def _count(shared: mmap, at: int) -> memoryview:
    return memoryview(shared)[at : at + 8].cast("Q")
