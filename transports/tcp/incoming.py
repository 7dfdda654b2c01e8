"""A message that is being received: its arrays, how many bytes have come, and the receive that waits for it.

A receiver may provide its arrays, which are then filled directly from the socket, and may take them back. The arrays of
a cancelled receive are not written again.
"""

import asyncio
from collections.abc import Callable, Sequence

from transports.wire.arrays import Block, landing
from transports.wire.frames import Header


class Incoming:
    """One message, after its header has come.

    Args:
        header: its header. Memory is allocated only at the first byte of the body.
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
        """A complete message, which a rank has sent to itself; `blocks` are its own copies."""
        message = cls(header)
        message._blocks, message._place, message.missing = blocks, len(blocks), 0
        return message

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The arrays, as far as they are filled; in new memory unless a receiver provided its own."""
        if self._blocks is None:
            self._blocks = landing(self.header.layouts)
        return self._blocks

    def post(self) -> None:
        """A receive for it is posted: call `on_posted`, the first time only."""
        on_posted, self.on_posted = self.on_posted, None
        if on_posted is not None:
            on_posted()

    def attach(self, into: Sequence[Block]) -> tuple[Block, ...]:
        """Receive into these arrays from now on; the bytes that have come already are copied there.

        Raises:
            ValueError: the arrays do not fit; nothing has changed.
        """
        blocks = landing(self.header.layouts, into)
        self._move(blocks)
        self._lent = True
        return blocks

    def detach(self, lent: tuple[Block, ...]) -> None:
        """Return the arrays of `attach`: move the message into new memory, unless it has left these arrays already."""
        if self._lent and self._blocks is lent:
            self._move(landing(self.header.layouts))
            self._lent = False

    def buffer(self) -> memoryview:
        """Memory for the next bytes. Do not call this when no byte is missing."""
        while self._offset == self.blocks[self._place].nbytes:
            self._place, self._offset = self._place + 1, 0
        return self.blocks[self._place].data[self._offset :]

    def advance(self, count: int) -> None:
        """Account for `count` bytes that were written to the front of `buffer`."""
        self._offset += count
        self.missing -= count
        if not self.missing:
            self._wake()

    def fail(self, error: Exception) -> None:
        """The rest will not come: fail the receive, and release its arrays."""
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
