"""The layout of the windows that `shared` uses: where greetings, places and slots begin.

greeting 0 | greeting 1 | place 0 | place 1        place: slot 0 | slot 1 | ... | slot n-1
"""

from typing import Any

from collectives.arrays import Vector
from collectives.call import Call
from collectives.group import Group
from collectives.signature import GREETING_BYTES
from transports.base import SharedWindows

ALIGNED = 64
"""The length of a slot is a multiple of this many bytes, so that places begin at the same byte for every dtype.
Otherwise a call could overwrite the end of a place that another rank still reads, in an earlier call of another dtype.
"""


class WindowLayout:
    """The windows of a group, for vectors of one dtype.

    Attributes:
        most: the most elements of a chunk with divided work.
        whole: the most elements of a chunk that is lent whole: it fills a place with two ranks; with more ranks only
            one slot, because other ranks may still read from other slots.
    """

    def __init__(self, group: Group, memory: SharedWindows, vector: Vector):
        self.size, self.rank, self.memory, self.windows = group.size, group.rank, memory, group.shared.windows(vector)
        self._ranks, self._first = group.ranks, 2 * GREETING_BYTES // vector.itemsize
        slot_bytes = (self.windows[0].nbytes - 2 * GREETING_BYTES) // (2 * group.size) // ALIGNED * ALIGNED
        self._part = slot_bytes // vector.itemsize
        self.most = self._part * group.size
        self.whole = self.most if group.size == 2 else self._part
        self._starts = [self._starts_of(turn) for turn in (0, 1)]
        self._greetings = [[window.data[at:][:GREETING_BYTES] for window in self.windows] for at in (0, GREETING_BYTES)]
        self._last: WholeSlot | None = None

    def slot(self, turn: int, number: int) -> int:
        """The element at which this slot begins, in each window, for data written after `turn` barriers."""
        return self._first + (turn & 1) * self.most + number * self._part

    def starts(self, turn: int) -> list[int]:
        """For each rank's window, the element at which a chunk begins that was lent whole after `turn` barriers."""
        return self._starts[turn & 1]

    def at_once(self, length: int) -> "WholeSlot":
        """The place of `length` elements, at most `whole`; cached, because most calls are as long as the last."""
        if self._last is None or self._last.length != length:
            self._last = WholeSlot(self, length)
        return self._last

    def greet(self, call: Call) -> None:
        """Write this call's greeting into this rank's window."""
        self._greetings[self.memory.epoch & 1][self.rank][:] = call.greeting

    def compare(self, call: Call) -> None:
        """Check, one barrier later, that all ranks wrote the same greeting.

        Raises:
            Mismatch: the greeting of a rank differs.
        """
        mine = call.greeting
        for place, greeting in enumerate(self._greetings[self.memory.epoch - 1 & 1]):
            if greeting != mine:
                call.compare(self._ranks[place], greeting)

    def _starts_of(self, turn: int) -> list[int]:
        """With more than two ranks, not in the rank's own slot, which divided work uses for its result."""
        return [self.slot(turn, 0 if self.size == 2 else (rank + 1) % self.size) for rank in range(self.size)]


class WholeSlot:
    """The place of `length` elements that every rank lends whole.

    Attributes:
        mine: the bytes of this rank's window to write to, after an even and after an odd number of barriers.
        operands: the elements of all ranks to read, likewise.
    """

    def __init__(self, places: WindowLayout, length: int):
        self.length = length
        own = places.windows[places.rank]
        starts = [places.starts(turn) for turn in (0, 1)]
        self.mine = [own.bytes(at[places.rank], at[places.rank] + length) for at in starts]
        self.operands: list[list[Any]] = [
            [window.elements[low : low + length] for window, low in zip(places.windows, at, strict=True)]
            for at in starts
        ]
