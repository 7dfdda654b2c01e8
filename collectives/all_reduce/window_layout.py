"""Where in the windows of a group's ranks which part of a call lies. The one rule: nothing is copied or reduced here.

greeting 0 | greeting 1 | place 0 | place 1        place: slot 0 | slot 1 | ... | slot n-1
"""

from typing import Any

from collectives.arrays import Vector
from collectives.call import Call
from collectives.group import Group
from collectives.signature import GREETING_BYTES
from transports.base import Shared

ALIGNED = 64
"""Bytes that divide a slot's length, so that places begin at the same byte for every dtype. Otherwise a call could
write over the end of the place that another rank still reads in the call before, of another dtype."""


class Places:
    """The windows of a group, for vectors of one dtype.

    Attributes:
        most: elements of a chunk that is divided.
        whole: elements of one that is lent whole: a place, or a slot where others may still read from another slot.
    """

    def __init__(self, group: Group, memory: Shared, vector: Vector):
        self.size, self.rank, self.memory, self.windows = group.size, group.rank, memory, group.shared.windows(vector)
        self._ranks, self._first = group.ranks, 2 * GREETING_BYTES // vector.itemsize
        slot_bytes = (self.windows[0].nbytes - 2 * GREETING_BYTES) // (2 * group.size) // ALIGNED * ALIGNED
        self._part = slot_bytes // vector.itemsize
        self.most = self._part * group.size
        self.whole = self.most if group.size == 2 else self._part
        self._starts = [self._starts_of(turn) for turn in (0, 1)]
        self._greetings = [[window.data[at:][:GREETING_BYTES] for window in self.windows] for at in (0, GREETING_BYTES)]
        self._last: Whole | None = None

    def slot(self, turn: int, number: int) -> int:
        """The element at which this slot of what was written after so many meetings begins, in each window."""
        return self._first + (turn & 1) * self.most + number * self._part

    def starts(self, turn: int) -> list[int]:
        """Where in each rank's window lies what it lent whole after so many meetings."""
        return self._starts[turn & 1]

    def at_once(self, length: int) -> "Whole":
        """Where so many elements, within `whole`, lie; one call is most often as long as the last."""
        if self._last is None or self._last.length != length:
            self._last = Whole(self, length)
        return self._last

    def greet(self, call: Call) -> None:
        """Say what this call is."""
        self._greetings[self.memory.meetings & 1][self.rank][:] = call.greeting

    def compare(self, call: Call) -> None:
        """Check, one meeting later, that all ranks said the same.

        Raises:
            Mismatch: one did not.
        """
        mine = call.greeting
        for place, greeting in enumerate(self._greetings[self.memory.meetings - 1 & 1]):
            if greeting != mine:
                call.compare(self._ranks[place], greeting)

    def _starts_of(self, turn: int) -> list[int]:
        """Not in a rank's own slot if the work is divided, too."""
        return [self.slot(turn, 0 if self.size == 2 else (rank + 1) % self.size) for rank in range(self.size)]


class Whole:
    """So many elements, lent whole by every rank after an even or an odd number of meetings.

    Attributes:
        mine: the bytes of this rank's window they are written to, by turns.
        operands: where all ranks' elements are read, by turns.
    """

    def __init__(self, places: Places, length: int):
        self.length = length
        own = places.windows[places.rank]
        starts = [places.starts(turn) for turn in (0, 1)]
        self.mine = [own.bytes(at[places.rank], at[places.rank] + length) for at in starts]
        self.operands: list[list[Any]] = [
            [window.elements[low : low + length] for window, low in zip(places.windows, at, strict=True)]
            for at in starts
        ]
