"""A message that is being received: its arrays, how many bytes have come, and the receive that waits for the last.

The next byte has one place at any moment, and the receiver that lent that place may take it back. So a receiver's
arrays are filled straight from the socket, and a cancelled receiver's arrays are not touched again.
"""

import asyncio
from collections.abc import Callable, Sequence

from transports.wire.arrays import Block, landing
from transports.wire.frames import Header


class Incoming:
    """One message behind its header.

    Args:
        header: what it said of itself; memory is taken only when the first byte needs it.
        on_posted: called when the first receive for it is posted.
    """

    __slots__ = (
        "_blocks",
        "_error",
        "_lent",
        "_offset",
        "_place",
        "_waiter",
        "header",
        "missing",
        "nbytes",
        "on_posted",
    )

    def __init__(self, header: Header, on_posted: Callable[[], None] | None = None):
        self.header, self.on_posted = header, on_posted
        self.nbytes = self.missing = header.nbytes or sum(layout.nbytes for layout in header.layouts)
        self._blocks: tuple[Block, ...] | None = None
        self._lent = False
        self._place, self._offset = 0, 0
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None

    @classmethod
    def complete(cls, header: Header, blocks: tuple[Block, ...]) -> "Incoming":
        """A message that needs no wire, its arrays already in memory of their own."""
        message = cls(header)
        message._blocks, message._place, message.missing = blocks, len(blocks), 0
        return message

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The arrays, as far as they are filled; fresh memory unless a receiver lent its own."""
        if self._blocks is None:
            self._blocks = landing(self.header.layouts)
        return self._blocks

    def post(self) -> None:
        """Note that a receive for it is posted; only the first counts."""
        on_posted, self.on_posted = self.on_posted, None
        if on_posted is not None:
            on_posted()

    def attach(self, into: Sequence[Block]) -> tuple[Block, ...]:
        """Receive into these arrays from now on; what has come already is copied there.

        Raises:
            ValueError: they do not fit; nothing has changed.
        """
        blocks = landing(self.header.layouts, into)
        self._move(blocks)
        self._lent = True
        return blocks

    def detach(self, lent: tuple[Block, ...]) -> None:
        """Give back what `attach` returned: move into fresh memory, unless the message lies elsewhere by now."""
        if self._lent and self._blocks is lent:
            self._move(landing(self.header.layouts))
            self._lent = False

    def buffer(self) -> memoryview:
        """Memory for the next bytes; do not call it when none is missing."""
        while self._offset == self.blocks[self._place].nbytes:
            self._place, self._offset = self._place + 1, 0
        return self.blocks[self._place].data[self._offset :]

    def advance(self, count: int) -> None:
        """Say that `count` bytes were put at the front of `buffer`."""
        self._offset += count
        self.missing -= count
        if not self.missing:
            self._wake()

    def fail(self, error: Exception) -> None:
        """The rest will not come: tell the receiver, and let go of its arrays."""
        if self.missing:
            self._error, self._blocks, self._lent, self.on_posted = error, None, False, None
            self._wake()

    async def whole(self) -> None:
        """Wait for the last byte.

        Raises:
            The error given to `fail`.
        """
        if self.missing and self._error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._error is not None:
            raise self._error.with_traceback(None)

    def _move(self, blocks: tuple[Block, ...]) -> None:
        if self._blocks is not None:
            for place in range(min(self._place, len(blocks))):
                blocks[place].data[:] = self._blocks[place].data
            if self._offset:
                blocks[self._place].data[: self._offset] = self._blocks[self._place].data[: self._offset]
        self._blocks = blocks

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
