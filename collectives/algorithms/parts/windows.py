"""What algorithms over shared memory have in common: how they open it, the order of reading, and pauses."""

from collections.abc import Iterator, Sequence
from time import perf_counter

from collectives.algorithms.parts.window_layout import WindowLayout
from collectives.arrays import Vector
from collectives.call import Unsupported
from collectives.group import Group
from collectives.reduction import Reduction
from transports.base import SharedWindows

IN_PLACE_BYTES = 512 << 10
"""Bytes from which an array in shared memory is used where it lies, for two barriers."""
TURN_S = 1e-3
"""Seconds after which long work pauses, so that the event loop can run."""


async def open_layout(group: Group, vector: Vector) -> WindowLayout:
    """The layout of the group's windows for vectors of this dtype.

    Raises:
        Unsupported: the group's ranks share no memory, or windows too small for them.
    """
    memory = group.shared.memory or await group.shared.open()
    if memory is None:
        name = type(group.transport).__name__
        fact = f"the ranks of this group share no memory (transport: {name}, ranks: {group.ranks})"
        raise Unsupported(f"{fact}; choose another algorithm")
    dtype = WindowLayout, vector.dtype, type(vector.elements)
    return group.workspace.cached(dtype, lambda: WindowLayout(group, memory, vector))


def others(rank: int, size: int) -> Iterator[int]:
    """All other ranks, from the next one on, so that ranks read different windows at a time."""
    return ((rank + distance) % size for distance in range(1, size))


def combine(operands: Sequence, into: object, reduction: Reduction) -> None:
    """Reduce two or more pieces in order; the first two are read before `into` is written."""
    first, second, *rest = operands
    reduction.combine(first, second, into)
    for operand in rest:
        reduction.combine(into, operand, into)


class Turn:
    """A rank's time on the event loop while it works between two barriers."""

    def __init__(self, memory: SharedWindows):
        self._memory, self._due = memory, perf_counter() + TURN_S

    async def pause(self) -> None:
        """Let the loop run if the turn has lasted `TURN_S`."""
        if perf_counter() > self._due:
            await self._memory.yield_core()
            self._due = perf_counter() + TURN_S
