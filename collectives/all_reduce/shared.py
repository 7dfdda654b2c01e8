"""Reduce through memory that the ranks share, where the transport offers it. Each byte is copied in once and out once.

A short array is lent whole: after one meeting every rank reduces all of them for itself. A long one is cut into chunks
that stay in the cores' caches; in each, the rank r reduces segment r, and lends all the others. Three chunks are worked
on between two meetings:

    between meetings     0        1         2         3       ...
    lends the parts of   chunk 0  chunk 1   chunk 2   chunk 3      others' segments, copied into this rank's window
    reduces its part of           chunk 0   chunk 1   chunk 2      from all windows into its array and its window
    takes the parts of                      chunk 0   chunk 1      others' reduced segments, copied out

The one rule: what was written into a window between two meetings is read between the next two and may be written over
after those, so each window has two places for what is lent and two for what is reduced, used in turn.

Operands are reduced in the order of ranks, a segment by one rank or by all alike, so all end with the same bits.
"""

import math
from collections.abc import Iterator

from collectives._group import Group
from collectives._pieces import Range, pieces, segment
from collectives._reduction import Reduction
from collectives._terms import GREETING_BYTES
from collectives._vector import Vector
from transports._contract import Shared

SHORT = 256 << 10
"""Bytes of the others that a rank had better reduce for itself than meet them a second time."""


async def all_reduce(group: Group, vector: Vector, reduction: Reduction) -> None:
    """Lend, reduce, take.

    Raises:
        ValueError: the group's ranks share no memory.
    Cost: one meeting for a short array; two, and one more for each chunk, for a long one, in which a rank copies
        2(n-1)/n of the array and reduces (n-1)/n. Nothing is sent. Extra memory is the rank's window.
    Source: Graham, Shipman, "MPI Support for Multi-core Architectures: Optimized Shared Memory Collectives", section 3.
    """
    memory = await group.shared()
    if memory is None:
        name = type(group.transport).__name__
        fact = f"the ranks of this group share no memory (transport: {name}, ranks: {group.ranks})"
        raise ValueError(f"{fact}; choose another algorithm")
    if group.size == 1 or not len(vector):
        return reduction.finish(vector.elements, group.size)
    places = Places(group, memory, vector)
    if len(vector) <= places.most and vector.nbytes * (group.size - 1) <= SHORT:
        await _whole(places, vector, reduction)
    else:
        await _in_chunks(places, vector, reduction)


def cost(size: int, nbytes: int, alpha: float, beta: float, gamma: float) -> float:
    """Infinite in terms of links, for it uses none: `auto` takes it wherever memory is shared."""
    return math.inf


class Places:
    """Where in the windows which part of a call lies.

        greeting 0 | greeting 1 | lent 0 | lent 1 | reduced 0 | reduced 1

    Attributes:
        most: elements of a chunk.
    """

    def __init__(self, group: Group, memory: Shared, vector: Vector):
        self.size, self.rank, self.memory = group.size, group.rank, memory
        self.windows = group.windows(vector)
        self._group, self._first = group, 2 * GREETING_BYTES // vector.itemsize
        room = len(self.windows[0]) - self._first
        self._part = room // (2 * group.size + 2)
        self.most = self._part * group.size

    def lent(self, turn: int) -> int:
        """The element at which what was lent after so many meetings begins, in each window."""
        return self._first + (turn & 1) * self.most

    def reduced(self, turn: int) -> int:
        """The same for what was reduced."""
        return self._first + 2 * self.most + (turn & 1) * self._part

    def greet(self) -> None:
        """Say what this call is."""
        at = (self.memory.meetings & 1) * GREETING_BYTES
        self.windows[self.rank].data[at : at + GREETING_BYTES] = self._group.call.greeting

    def compare(self) -> None:
        """Check, one meeting later, that all ranks said the same.

        Raises:
            Mismatch: one did not.
        """
        at = (self.memory.meetings - 1 & 1) * GREETING_BYTES
        for rank in _others(self.rank, self.size):
            self._group.call.compare(self._group.ranks[rank], self.windows[rank].data[at : at + GREETING_BYTES])


async def _whole(places: Places, vector: Vector, reduction: Reduction) -> None:
    turn, length, windows = places.memory.meetings, len(vector), places.windows
    at = places.lent(turn)
    windows[places.rank].bytes(at, at + length)[:] = vector.data
    places.greet()
    await places.memory.meet()
    places.compare()
    vector.keep(0, length)
    _combine([window.elements[at : at + length] for window in windows], vector.elements, reduction)
    reduction.finish(vector.elements, places.size)


async def _in_chunks(places: Places, vector: Vector, reduction: Reduction) -> None:
    chunks = list(pieces(0, len(vector), places.most))
    places.greet()
    for step in range(len(chunks) + 2):
        if step:
            await places.memory.meet()
        if step == 1:
            places.compare()
        if step < len(chunks):
            _lend(places, vector, chunks[step])
        if 1 <= step <= len(chunks):
            _reduce(places, vector, chunks[step - 1], reduction)
        if step >= 2:
            _take(places, vector, chunks[step - 2])


def _lend(places: Places, vector: Vector, chunk: Range) -> None:
    """Copy all but this rank's own segment into its window."""
    low, high = _segment(chunk, places.size, places.rank)
    at, window = places.lent(places.memory.meetings) - chunk[0], places.windows[places.rank]
    for start, stop in ((chunk[0], low), (high, chunk[1])):
        window.bytes(at + start, at + stop)[:] = vector.bytes(start, stop)


def _reduce(places: Places, vector: Vector, chunk: Range, reduction: Reduction) -> None:
    """Reduce this rank's own segment into its window, finish it, and copy it home."""
    low, high = _segment(chunk, places.size, places.rank)
    turn = places.memory.meetings
    at, into = places.lent(turn - 1) - chunk[0], places.reduced(turn)
    operands = [window.elements[at + low : at + high] for window in places.windows]
    operands[places.rank] = vector.elements[low:high]
    window = places.windows[places.rank]
    mine = window.elements[into : into + high - low]
    _combine(operands, mine, reduction)
    reduction.finish(mine, places.size)
    vector.keep(low, high)
    vector.bytes(low, high)[:] = window.bytes(into, into + high - low)


def _take(places: Places, vector: Vector, chunk: Range) -> None:
    """Copy what the others have reduced home, beginning with the next rank's, so that not all read one at once."""
    at = places.reduced(places.memory.meetings - 1)
    for rank in _others(places.rank, places.size):
        low, high = _segment(chunk, places.size, rank)
        vector.keep(low, high)
        vector.bytes(low, high)[:] = places.windows[rank].bytes(at, at + high - low)


def _combine(operands: list, into: object, reduction: Reduction) -> None:
    first, second, *rest = operands
    reduction.combine(first, second, into)
    for operand in rest:
        reduction.combine(into, operand, into)


def _segment(chunk: Range, size: int, rank: int) -> Range:
    low, high = segment(chunk[1] - chunk[0], size, rank)
    return chunk[0] + low, chunk[0] + high


def _others(rank: int, size: int) -> Iterator[int]:
    return ((rank + distance) % size for distance in range(1, size))
