"""The windows that the `shared` algorithms use: each has two halves, which are written by turns.

    fingerprint 0 | fingerprint 1 | half 0 | half 1        half: slot 0 | slot 1 | ... | slot n-1

Data written between two barriers is read between the next two, and may be overwritten after those. So fingerprint 0 and
half 0 are written after an even number of barriers, the others after an odd one.

Where ranks divide the work, segment r of a chunk lies in slot r: a rank copies into the slots of the others; its own
slot holds its result. A chunk that ranks copy in whole, before each reduces all of it:

    two ranks      it begins at slot 0 and may fill the half
    more ranks     rank r's lies in slot r + 1 alone: other ranks may still read from its other slots

An array of `publish` begins at slot 0 and may fill the half. If `is_read_again`, a barrier comes before it is written.
"""

from typing import Any

from collectives.arrays import Vector
from collectives.errors import Unsupported
from collectives.group import Group
from collectives.group.call import Call
from collectives.group.signature import FINGERPRINT_BYTES
from transports.base import SharedWindows

ALIGNED = 64
"""The length of a slot is a multiple of this many bytes, so that halves begin at the same byte for every dtype.
Otherwise a call could overwrite the end of a half that another rank still reads, in an earlier call of another dtype.
"""
FINGERPRINTS = slice(0, FINGERPRINT_BYTES), slice(FINGERPRINT_BYTES, 2 * FINGERPRINT_BYTES)
"""Where a window has the fingerprints 0 and 1."""


class DoubleBuffer:
    """The windows of a group, for vectors of one dtype.

    `barriers_ago` says before how many barriers a slot was written: 1 for the other ranks' data, 2 for their results.

    Attributes:
        slot_elements: the elements of a slot.
        chunk_elements: the most elements of a chunk with divided work.
        whole_chunk_elements: the most elements of a chunk that is copied in whole.
        half_bytes: the bytes of a half.
    Raises:
        Unsupported: the window of a rank has no room for a slot of each rank.
    """

    def __init__(self, group: Group, memory: SharedWindows, vector: Vector):
        self.size = group.size
        self.rank = group.rank
        self.memory = memory
        self._windows = group.shared.windows(vector)
        self._ranks = group.ranks
        self._itemsize = vector.itemsize
        self._slot_bytes = (self._windows[0].nbytes - 2 * FINGERPRINT_BYTES) // (2 * group.size) // ALIGNED * ALIGNED
        if self._slot_bytes < ALIGNED:
            min_bytes = 2 * FINGERPRINT_BYTES + 2 * group.size * ALIGNED
            fact = f"the windows of this group are too small for its ranks (ranks: {group.size})"
            raise Unsupported(f"{fact}; give Group(window={min_bytes}) or more, or another algorithm")
        self.half_bytes = self._slot_bytes * group.size
        self.slot_elements = self._slot_bytes // vector.itemsize
        self.chunk_elements = self.slot_elements * group.size
        self.whole_chunk_elements = self.chunk_elements if group.size == 2 else self.slot_elements
        self._own_window = self._windows[self.rank].data
        self._calls, self._compared_call = group.calls, 0  # not the group: its workspace holds this
        self._shared = group.shared
        self._whole_length = -1
        self._whole_chunks: list[list[Any]] = [[], []]

    async def advance(self) -> None:
        """Wait at a barrier: what was written is then read. The first one of a call compares the call on all ranks.

        Raises:
            Mismatch: another rank called something else. Else as `SharedWindows.barrier`.
        """
        call = self._calls.running
        if self._compared_call == call.number:
            return await self.memory.barrier()
        place = self._write_fingerprint(call)
        await self.memory.barrier()
        self._compare(call, place)

    def arrive(self) -> bool:
        """As `advance` for the first barrier of a call, in any thread; see `SharedWindows.arrive`."""
        call = self._calls.running
        place = self._write_fingerprint(call)
        if not self.memory.arrive():
            return False
        self._compare(call, place)
        return True

    async def wait_for_missing(self) -> None:
        """Wait for the ranks that were missing when this rank arrived. Raises: as `advance`."""
        await self.memory.wait_for_missing()
        self._compare(self._calls.running, FINGERPRINTS[self.memory.epoch - 1 & 1])

    def _write_fingerprint(self, call: Call) -> slice:
        """Write the call's fingerprint, which is compared after the barrier; returns where."""
        place = FINGERPRINTS[self.memory.epoch & 1]
        self._compared_call = call.number
        self._own_window[place] = call.fingerprint
        return place

    def _compare(self, call: Call, place: slice) -> None:
        for rank, window in enumerate(self._windows):
            if (fingerprint := window.data[place]) != call.fingerprint:
                call.compare(self._ranks[rank], fingerprint)

    def copy_in(self, data: memoryview, slot: int, offset: int = 0) -> None:
        """Copy bytes into a slot of this rank's window, from this offset in bytes on."""
        start = self._start(slot, 0) + offset
        self._own_window[start : start + data.nbytes] = data

    def copy_out(self, rank: int, slot: int, data: memoryview, *, barriers_ago: int = 1, offset: int = 0) -> None:
        """Fill `data` from a slot of that rank's window, as it was written before that many barriers."""
        start = self._start(slot, barriers_ago) + offset
        data[:] = self._windows[rank].data[start : start + data.nbytes]

    @property
    def is_read_again(self) -> bool:
        """Whether other ranks may still read from the half that is written next; equal on all ranks."""
        return self._shared.read_again_at == self.memory.epoch

    def note_read_again(self) -> None:
        """Record that other ranks may still be reading the half that will be written next."""
        self._shared.read_again_at = self.memory.epoch

    def elements(self, rank: int, slot: int, length: int, barriers_ago: int = 1) -> Any:
        """The elements of that rank's window from a slot on, as they were written before that many barriers."""
        start = self._start(slot, barriers_ago) // self._itemsize
        return self._windows[rank].elements[start : start + length]

    def whole_slot(self, rank: int) -> int:
        """The slot of that rank's window at which a chunk that is copied in whole begins."""
        return 0 if self.size == 2 else (rank + 1) % self.size

    def whole_chunks(self, length: int) -> list[Any]:
        """The elements of all ranks' chunks of this length that were copied in whole before the last barrier.

        They are kept for the next call, because most calls are as long as the last.
        """
        if self._whole_length != length:
            self._whole_length = length
            self._whole_chunks = [[], []]
        half = self._whole_chunks[self.memory.epoch & 1]
        if not half:
            half += [self.elements(rank, self.whole_slot(rank), length) for rank in range(self.size)]
        return half

    def _start(self, slot: int, barriers_ago: int) -> int:
        """The byte of a window at which the half that was in use that many barriers ago holds this slot."""
        half = self.memory.epoch - barriers_ago & 1
        return 2 * FINGERPRINT_BYTES + (half * self.size + slot) * self._slot_bytes
