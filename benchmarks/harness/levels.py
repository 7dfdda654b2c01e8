"""What a process holds at a moment, and which of it grows: the levels that a long run must keep.

A level is looked at several times in a row and the least counts: what is under way at a moment comes and goes, and what
leaks stays.
"""

import asyncio
import gc
import os
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness.resident import resident

KEPT, AWAITED = "Arrival", "_Receive"
"""The classes of a mailbox's two lists: messages that no receive has asked for, and receives that wait."""
SHARED = ("/dev/shm/", "/memfd:")
ALLOWED_BYTES, ALLOWED_BYTES_A_STEP = 3 << 20, 64
"""By how much the resident memory of a process that leaks nothing may rise: blocks fill up by chance."""
ALLOWED_OBJECTS, STEPS_AN_OBJECT = 200, 20
"""By how many Python's objects may rise, and in how many steps by one more: caches of a bounded length fill."""


@dataclass(frozen=True)
class Levels:
    """What one process holds.

    Args:
        resident: bytes in memory.
        shared: bytes mapped from /dev/shm and of memory files.
        descriptors: open files and sockets.
        threads: of Python.
        tasks: of the running loop.
        mailbox: messages that lie unasked, and receives that wait.
        objects: that Python's search for garbage looks through.
    """

    resident: int
    shared: int
    descriptors: int
    threads: int
    tasks: int
    mailbox: int
    objects: int

    def grown(self, later: "Levels", steps: int) -> list[str]:
        """The levels that are higher later than chance allows.

        Args:
            steps: between the two.
        """
        allowed = {
            "resident": ALLOWED_BYTES + ALLOWED_BYTES_A_STEP * steps,
            "objects": ALLOWED_OBJECTS + steps // STEPS_AN_OBJECT,
        }
        before, after = asdict(self), asdict(later)
        return [name for name in before if after[name] - before[name] > allowed.get(name, 0)]


def look() -> Levels:
    """The levels of this process now; on its running loop. Cost: some 100 ms, for garbage is collected first."""
    gc.collect()
    names = [type(thing).__name__ for thing in gc.get_objects()]
    return Levels(
        resident("VmRSS"),
        _shared(),
        len(os.listdir("/proc/self/fd")),
        threading.active_count(),
        len(asyncio.all_tasks()),
        names.count(KEPT) + names.count(AWAITED),
        len(names),
    )


def least(looks: Iterable[Levels]) -> Levels:
    """The least of each level."""
    return Levels(*map(min, zip(*(asdict(each).values() for each in looks), strict=True)))


def _shared() -> int:
    """Bytes of this process's mappings of shared memory."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith(SHARED):
            first, last = (int(address, 16) for address in fields[0].split("-"))
            total += last - first
    return total
