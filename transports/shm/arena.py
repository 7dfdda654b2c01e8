"""An arena in shared memory: holds message bodies from the sender's copy until the receiver's last use.

    byte 0            4096                      a page boundary
    token | state     | marks, one a page       | bodies ...

Every byte has one writer at a time. The owner takes free pages (mark 0), sets their marks to 1, and fills them. The
receiver uses them in place and clears their marks when no array views them any more, so no message is needed to free
memory. The owner sets its sleep state before it sleeps; the peer that wakes it clears the state before it rings. No MPI
and no frames.

Why: a copy of 1 MiB takes 21 µs. Reading it from the other process's memory takes 82 µs, because the kernel pins each
page, and needs both ends awake twice; into new memory it takes 900 µs, because the kernel zeroes each page first.

On processors that do not keep the order of a core's reads and writes (ARM), a receiver's cleared marks could become
visible before its last reads of the body. There is no arena there: see `transports.shm.windows.TOTAL_STORE_ORDER`.
"""

import mmap
import weakref
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from transports.errors import SAME_RELEASE, WireError
from transports.shm.memfd import HANDLE_BYTES, TOKEN_BYTES, MemoryFile, map_memory
from transports.shm.windows import TOTAL_STORE_ORDER
from transports.wire.arrays import Block

PAGE = 4096
PAGE_FLAGS = PAGE
SLEEP_STATE = TOKEN_BYTES
MAX_PAGES = 1 << 16
SHARE = 4
"""A body may take at most 1 / SHARE of the arena, so that one body cannot block all others."""


def _first_offset(nbytes: int) -> int:
    """The offset of the first body in an arena that holds `nbytes` bytes of bodies."""
    return PAGE_FLAGS - (-(nbytes // PAGE) // PAGE) * PAGE


class Arena:
    """This rank's memory for bodies on their way to the other ranks of its node.

    Args:
        nbytes: size for bodies, at most 256 MiB. Unused pages take no memory; the lowest free pages are used first.
    Attributes:
        nbytes: this size.
        handle: what a peer needs to map the arena, `HANDLE_BYTES` long; all zeros if there is no arena.
    """

    def __init__(self, nbytes: int):
        self.nbytes = nbytes
        self._pages = min(nbytes // PAGE, MAX_PAGES)
        self._first_body = _first_offset(nbytes)
        self._file: MemoryFile | None = None
        self._memory: mmap.mmap | None = None
        self.handle = bytes(HANDLE_BYTES)
        if not TOTAL_STORE_ORDER:
            return
        with suppress(OSError):
            self._file = MemoryFile(self._first_body + nbytes)
            self._memory, self.handle = self._file.memory, self._file.handle

    def put(self, blocks: Sequence[Block]) -> int | None:
        """Copy the blocks in, one after the other. Returns their first page; None if there is no room.

        Cost: one copy, and a search of the marks.
        """
        pages = _pages(blocks)
        shared = self._memory
        if shared is None or pages * SHARE > self._pages:
            return None
        mark = shared.find(bytes(pages), PAGE_FLAGS, PAGE_FLAGS + self._pages)
        if mark < 0:
            return None
        shared[mark : mark + pages] = b"\1" * pages
        offset = self._first_body + (mark - PAGE_FLAGS) * PAGE
        for data in [block.data for block in blocks if block.nbytes]:
            into = np.frombuffer(shared, np.uint8, data.nbytes, offset)
            into[:] = np.frombuffer(data, np.uint8)  # numpy lets other threads run
            offset += data.nbytes
        return mark - PAGE_FLAGS

    def set_sleep_state(self, state: int) -> None:
        """Announce how this rank sleeps; 0: awake. A peer must ring a sleeping rank after sending to it."""
        if self._memory is not None:
            self._memory[SLEEP_STATE] = state

    def close(self) -> None:
        """Accept no more bodies; bodies that peers still view stay."""
        if self._file is not None:
            self._file.close()
            self._file = self._memory = None


class PeerArena:
    """The arena of a peer, mapped into this process.

    Args:
        handle: the handle of the peer's arena.
        nbytes: size for bodies in that arena.
    Raises:
        OSError: there is no such memory here: another machine or container, or the peer is gone.
    """

    def __init__(self, handle: bytes, nbytes: int):
        self._pages = min(nbytes // PAGE, MAX_PAGES)
        self._first_body = _first_offset(nbytes)
        self._shared = map_memory(handle, self._first_body + nbytes)

    @property
    def sleep_state(self) -> int:
        """How the peer sleeps; 0: awake, or another peer is waking it."""
        return self._shared[SLEEP_STATE]

    def mark_awake(self) -> bool:
        """Mark the peer awake. Returns whether it was asleep, so that the caller must ring its doorbell."""
        asleep = self._shared[SLEEP_STATE] != 0
        if asleep:
            self._shared[SLEEP_STATE] = 0
        return asleep

    def view(self, page: int, nbytes: int) -> memoryview:
        """View the body that begins at this page; its pages are freed when no array views them any more.

        Raises:
            WireError: no body can be there.
        """
        pages = -(-nbytes // PAGE)
        if nbytes <= 0 or page + pages > self._pages:
            fact = f"no body lies there (page: {page}, bytes: {nbytes}, pages: {self._pages})"
            raise WireError(f"{fact}; {SAME_RELEASE}")
        body = np.frombuffer(self._shared, np.uint8, nbytes, self._first_body + page * PAGE)
        weakref.finalize(body, _unmark, self._shared, PAGE_FLAGS + page, pages).atexit = False
        return body.data


def _pages(blocks: Sequence[Block]) -> int:
    return -(-sum([block.nbytes for block in blocks]) // PAGE)


def _unmark(shared: mmap.mmap, mark: int, pages: int) -> None:
    shared[mark : mark + pages] = bytes(pages)
