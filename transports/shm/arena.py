"""An arena in shared memory: where a body lies between its sender's copy and its receiver's use of it.

    byte 0            4096                      a page boundary
    token | dozing    | marks, one a page       | bodies ...

Every byte has one writer at a time. The owner marks free pages (1) and fills them; the receiver uses them in place, and
unmarks them (0) when nothing views them any more. So no message says that memory is free again, and memory that a
receiver keeps is only memory that its sender must do without. The owner writes that it dozes; the peer that wakes it
erases that before it rings. Knows no MPI and no frames.

Why: 1 MiB is copied in 21 us here. Fetching it from the other process's memory takes 82, as the kernel pins each page,
and needs both ends awake twice; and 900 into memory that is fresh, as the kernel zeroes each page first.
"""

import mmap
import weakref
from collections.abc import Sequence

import numpy as np

from transports.errors import WireError
from transports.shm.memfd import ADDRESS_BYTES, TOKEN_BYTES, Lent, mapped
from transports.wire.arrays import Block

PAGE = 4096
MARKS = PAGE
DOZING = TOKEN_BYTES
MOST_PAGES = 1 << 16
SHARE = 4
"""A body may take one part in so many of the arena, so that one of them cannot keep out all others."""


def _first(nbytes: int) -> int:
    """Where the bodies begin in an arena for so many bytes of them."""
    return MARKS - (-(nbytes // PAGE) // PAGE) * PAGE


class Arena:
    """This rank's memory for bodies on their way to the other ranks of its node.

    Args:
        nbytes: of bodies, 256 MiB at most; pages never used take no memory, and the first that are free are used first.
    Attributes:
        address: what a peer must know to map it, `ADDRESS_BYTES` long; all zeros where there is none.
    """

    def __init__(self, nbytes: int):
        self._pages, self._first = min(nbytes // PAGE, MOST_PAGES), _first(nbytes)
        try:
            self._lent: Lent | None = Lent(self._first + nbytes)
        except OSError:
            self._lent, self.address = None, bytes(ADDRESS_BYTES)
        else:
            self._shared, self.address = self._lent.memory, self._lent.address
            self._bytes = np.frombuffer(self._shared, np.uint8)

    def put(self, blocks: Sequence[Block]) -> int | None:
        """Copy the blocks in, one after the other; the page they begin at, or None where there is no room.

        Cost: one copy, and a search of the marks.
        """
        pages = _pages(blocks)
        if self._lent is None or pages * SHARE > self._pages:
            return None
        mark = self._shared.find(bytes(pages), MARKS, MARKS + self._pages)
        if mark < 0:
            return None
        self._shared[mark : mark + pages] = b"\1" * pages
        at = self._first + (mark - MARKS) * PAGE
        for data in [block.data for block in blocks if block.nbytes]:
            self._bytes[at : at + data.nbytes] = np.frombuffer(data, np.uint8)  # which lets other threads run
            at += data.nbytes
        return mark - MARKS

    def take_back(self, page: int, blocks: Sequence[Block]) -> None:
        """Free the pages of blocks that were put there, and that nobody was told of."""
        if self._lent is not None:
            _free(self._shared, MARKS + page, _pages(blocks))

    def doze(self, dozing: int) -> None:
        """Say whether this rank must be woken to see what comes, and how it sleeps; 0 if it is awake."""
        if self._lent is not None:
            self._shared[DOZING] = dozing

    def close(self) -> None:
        """Take no more bodies; those that peers still view stay."""
        if self._lent is not None:
            self._lent.close()
            self._lent = self._shared = self._bytes = None


class Window:
    """The arena of a peer, mapped here.

    Args:
        address: the peer's.
        nbytes: of bodies in its arena.
    Raises:
        OSError: there is nothing to map: another machine or container, or the peer is gone.
    """

    def __init__(self, address: bytes, nbytes: int):
        self._pages, self._first = min(nbytes // PAGE, MOST_PAGES), _first(nbytes)
        self._shared = mapped(address, self._first + nbytes)

    @property
    def dozing(self) -> int:
        """How the peer sleeps; 0 if it is awake, or about to be."""
        return self._shared[DOZING]

    def rouse(self) -> bool:
        """Mark the peer awake; whether this process did so, and so must ring it."""
        dozing = self._shared[DOZING] != 0
        if dozing:
            self._shared[DOZING] = 0
        return dozing

    def look(self, page: int, nbytes: int) -> memoryview:
        """The body that begins at this page, in place; its pages are free again once nothing views it.

        Raises:
            WireError: no body can lie there.
        """
        pages = -(-nbytes // PAGE)
        if nbytes <= 0 or page + pages > self._pages:
            fact = f"no body lies there (page: {page}, bytes: {nbytes}, pages: {self._pages})"
            raise WireError(f"{fact}; install one release on every rank")
        body = np.frombuffer(self._shared, np.uint8, nbytes, self._first + page * PAGE)
        weakref.finalize(body, _free, self._shared, MARKS + page, pages).atexit = False
        return memoryview(body)


def _pages(blocks: Sequence[Block]) -> int:
    return -(-sum([block.nbytes for block in blocks]) // PAGE)


def _free(shared: mmap.mmap, mark: int, pages: int) -> None:
    shared[mark : mark + pages] = bytes(pages)
