"""The layout of the windows that `shared` uses: where greetings, halves and slots begin.

    greeting 0 | greeting 1 | half 0 | half 1        half: slot 0 | slot 1 | ... | slot n-1

Greeting 0 and half 0 are written after an even number of barriers, the others after an odd one. Where ranks divide the
work, segment r of a chunk lies in slot r: a rank copies into the slots of the others; its own slot holds its result.

A chunk that ranks copy in whole, before each reduces all of it:

    two ranks      it begins at slot 0 and may fill the half
    more ranks     rank r's lies in slot r + 1 alone: other ranks may still read from its other slots
"""

from typing import Any

from collectives.arrays import Vector
from collectives.call import Call, Unsupported
from collectives.group import Group
from collectives.signature import GREETING_BYTES
from transports.base import SharedWindows

ALIGNED = 64
"""The length of a slot is a multiple of this many bytes, so that halves begin at the same byte for every dtype.
Otherwise a call could overwrite the end of a half that another rank still reads, in an earlier call of another dtype.
"""


class WindowLayout:
    """The windows of a group, for vectors of one dtype.

    Attributes:
        part: the elements of a slot.
        most: the most elements of a chunk with divided work.
        whole: the most elements of a chunk that is copied in whole.
    Raises:
        Unsupported: the window of a rank has no room for a slot of each rank.
    """

    def __init__(self, group: Group, memory: SharedWindows, vector: Vector):
        self.size, self.rank, self.memory, self.windows = group.size, group.rank, memory, group.shared.windows(vector)
        self._ranks, self._first = group.ranks, 2 * GREETING_BYTES // vector.itemsize
        slot_bytes = (self.windows[0].nbytes - 2 * GREETING_BYTES) // (2 * group.size) // ALIGNED * ALIGNED
        if slot_bytes < ALIGNED:
            least = 2 * GREETING_BYTES + 2 * group.size * ALIGNED
            fact = f"the windows of this group are too small for its ranks (ranks: {group.size})"
            raise Unsupported(f"{fact}; give Group(window={least}) or more, or another algorithm")
        self.part = slot_bytes // vector.itemsize
        self.most = self.part * group.size
        self.whole = self.most if group.size == 2 else self.part
        self._starts = [self._starts_of(epoch) for epoch in (0, 1)]
        self._greetings = [[window.data[at:][:GREETING_BYTES] for window in self.windows] for at in (0, GREETING_BYTES)]
        self._last: WholeSlot | None = None

    def slot(self, epoch: int, number: int) -> int:
        """The element at which this slot begins, in each window, for data written after `epoch` barriers."""
        return self._first + (epoch & 1) * self.most + number * self.part

    def starts(self, epoch: int) -> list[int]:
        """For each rank's window, the element at which a chunk copied in whole after `epoch` barriers begins."""
        return self._starts[epoch & 1]

    def at_once(self, length: int) -> "WholeSlot":
        """The memory of `length` elements, at most `whole`; cached, because most calls are as long as the last."""
        if self._last is None or self._last.length != length:
            self._last = WholeSlot(self, length)
        return self._last

    def write_greeting(self, call: Call) -> None:
        """Write this call's greeting into this rank's window."""
        self._greetings[self.memory.epoch & 1][self.rank][:] = call.greeting

    def compare(self, call: Call) -> None:
        """Check, one barrier later, that all ranks wrote the same greeting.

        Raises:
            Mismatch: the greeting of a rank differs.
        """
        mine = call.greeting
        for at, greeting in enumerate(self._greetings[self.memory.epoch - 1 & 1]):
            if greeting != mine:
                call.compare(self._ranks[at], greeting)

    def _starts_of(self, epoch: int) -> list[int]:
        """With more than two ranks, not in the rank's own slot, which divided work uses for its result."""
        return [self.slot(epoch, 0 if self.size == 2 else (rank + 1) % self.size) for rank in range(self.size)]


class WholeSlot:
    """The memory of `length` elements that every rank copies in whole.

    Attributes:
        mine: the bytes of this rank's window to write to, after an even and after an odd number of barriers.
        operands: the elements of all ranks to read, likewise.
    """

    def __init__(self, layout: WindowLayout, length: int):
        self.length = length
        own = layout.windows[layout.rank]
        starts = [layout.starts(epoch) for epoch in (0, 1)]
        self.mine = [own.bytes(at[layout.rank], at[layout.rank] + length) for at in starts]
        self.operands: list[list[Any]] = [
            [window.elements[low : low + length] for window, low in zip(layout.windows, at, strict=True)]
            for at in starts
        ]
