"""What the `shared` algorithms have in common: opening their windows, the order of reading, and pauses."""

from collections.abc import Iterator, Sequence
from time import perf_counter

import numpy as np

from collectives.algorithms.base import Algorithm
from collectives.algorithms.parts.double_buffer import DoubleBuffer
from collectives.arrays import Vector
from collectives.errors import Unsupported
from collectives.group import Group
from transports.base import SharedWindows

RAW_BYTES = Vector.of(np.empty(0, np.uint8))
"""The kind of a window's elements, where what is copied has no one dtype."""
IN_PLACE_BYTES = 512 << 10
"""Bytes from which an array in shared memory is used where it lies, for two barriers."""
CHUNK_BYTES = 512 << 10
"""Bytes copied or reduced at a time: they stay in a core's cache until another rank, or the next step, reads them (an
all-reduce of two ranks in chunks of 1 MiB took 1.7 times as long for arrays of 64 MiB, 1.6 times for 16 MiB)."""
YIELD_AFTER_S = 1e-3
"""Seconds after which long work pauses, so that the event loop can run."""


class SharedMemoryAlgorithm(Algorithm):
    """An algorithm through memory that the ranks share."""

    preferred = True

    async def is_available(self, group: Group) -> bool:
        return await group.shared.open() is not None


async def open_buffer(group: Group, vector: Vector) -> DoubleBuffer:
    """The group's windows, for vectors of this dtype.

    Raises:
        Unsupported: the group's ranks share no memory, or windows too small for them.
    """
    await group.shared.open()
    if (buffer := opened_buffer(group, vector)) is None:
        name = type(group.transport).__name__
        fact = f"the ranks of this group share no memory (transport: {name}, ranks: {group.ranks})"
        raise Unsupported(f"{fact}; choose another algorithm")
    return buffer


def opened_buffer(group: Group, vector: Vector) -> DoubleBuffer | None:
    """As `open_buffer`; None where windows are not open.

    Raises:
        Unsupported: the windows are too small for the ranks.
    """
    if (memory := group.shared.memory) is None:
        return None
    dtype = DoubleBuffer, vector.dtype, type(vector.elements)
    buffer: DoubleBuffer = group.workspace.cached(dtype, lambda: DoubleBuffer(group, memory, vector))
    return buffer


def claim_symmetric_arrays(group: Group, vector: Vector) -> Sequence[Vector]:
    """The arrays of all ranks, in order, if they are long and lie in symmetric memory; else none.

    Adds the label of their place to the signature of the running call.
    """
    if vector.nbytes < IN_PLACE_BYTES or not (view := group.shared.find(vector)):
        return ()
    group.running.refine(memory_label=view.label)
    return view.arrays


def cached_elements(vector: Vector, arrays: int = 1) -> int:
    """The elements of this many arrays that make `CHUNK_BYTES` together, at least one."""
    return max(1, CHUNK_BYTES // arrays // vector.itemsize)


def others(rank: int, size: int) -> Iterator[int]:
    """All other ranks, from the next one on, so that no two ranks read one window at once."""
    return ((rank + distance) % size for distance in range(1, size))


class LoopYielder:
    """Lets the event loop run from time to time, during long work between two barriers."""

    def __init__(self, memory: SharedWindows):
        self._memory = memory
        self._yield_at = perf_counter() + YIELD_AFTER_S

    async def pause(self) -> None:
        """Let the loop run if it has not for `YIELD_AFTER_S`."""
        if perf_counter() > self._yield_at:
            await self._memory.yield_core()
            self._yield_at = perf_counter() + YIELD_AFTER_S
