"""The windows of a group's ranks, and how many meetings each has come to, in memory that all of them map.

    byte 0       64           128       4096
    token        meetings     sleep     window

The one rule: each byte has one writer, its owner. What a rank wrote before it came to a meeting is seen by all who saw
it come, as processors keep a rank's writes in order; one that does not (ARM's) must not use this. Knows neither
transport nor event loop.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 3, section 9.2.2.
"""

import platform
import threading
from collections.abc import Sequence
from enum import IntEnum
from time import perf_counter

from transports._futex import Futex
from transports._memfd import Lent, mapped

MEETINGS, SLEEP = 64, 128
HEAD = 4096
KEEPS_ORDER = platform.machine() in ("x86_64", "AMD64")
LOOKS = 4


class Sleep(IntEnum):
    """How a rank waits, for whoever comes."""

    NONE = 0  # it looks
    NAP = 1  # in the middle of a look, on one of the counters
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
        counters = [memoryview(shared)[MEETINGS : MEETINGS + 8].cast("Q") for shared in maps]
        futexes = [Futex(shared, MEETINGS) for shared in maps]  # a counter's lower half, as processors here order bytes
        self._mine, self._my_futex, self._my_sleep = counters.pop(rank), futexes.pop(rank), maps.pop(rank)
        self._others, self._futexes, self._sleeps = counters, futexes, maps
        self._fence = threading.Lock()
        self.meetings = 0

    def come(self) -> None:
        """This rank has written what it lends at this meeting, and read what it wanted of the last one."""
        self.meetings += 1
        self._mine[0] = self.meetings

    def wake(self) -> list[int]:
        """Wake who naps, as this rank has come; which of the others sleep deeply, and are to be rung."""
        self._settle()
        sleeps = [sleep[SLEEP] for sleep in self._sleeps]
        if not any(sleeps):
            return []
        if Sleep.NAP in sleeps:
            self._my_futex.wake()
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
        end = perf_counter() + seconds
        while True:
            for _ in range(LOOKS):
                absent = self.met(absent)
                if absent is None:
                    return None
            left = end - perf_counter()
            if left <= 0:
                return absent
            if crowded:
                self._nap(absent, left)

    def _nap(self, absent: int, seconds: float) -> None:
        self.sleep(Sleep.NAP)
        seen = self._others[absent][0]
        if seen < self.meetings:
            self._futexes[absent].wait(seen, seconds)
        self._my_sleep[SLEEP] = Sleep.NONE
