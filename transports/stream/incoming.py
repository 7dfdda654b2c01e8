"""The bodies that one peer sends, as they arrive: in the arrays of a posted receive, else in new memory. No I/O.

The arrays of a cancelled receive are not written again. A message takes memory until it is consumed, by which receivers
limit what they keep. Headers count: many empty messages take memory too. Both ends compute the same number.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from transports.aio.futures import resolve
from transports.wire.arrays import Block, blocks_for
from transports.wire.frames import Header, Key

FRAME_BYTES = 2 << 10  # a message without arrays and note, or a buffer, in a mailbox (measured: 1.6 and 1.4 KiB)
BLOCK_BYTES = 768  # an array without its bytes (measured: 736)
ITEM_BYTES = 128  # a value unpacked by msgpack, without a text's characters (measured: 99, in dicts of one item)

Memory = TypeVar("Memory")
Views = Sequence[memoryview]


class Sender(Protocol):
    """The peer that sends a body, as this rank sees it: a `TcpPeer`."""

    def on_receive_posted(self, body: "IncomingBody[Any]") -> None:
        """A receive for the body is posted."""


class IncomingBody(ABC, Generic[Memory]):
    """A body that is being received; its memory is allocated at its first byte, unless a receive has attached its own.

    Args:
        nbytes: its size.
        sender: called when the first receive for it is posted; None if there is no peer.
        kept_bytes: bytes by which the sender counts the body while no receive for it is posted.
        offer: the number under which the sender holds the body; None if it sends it unexpected.
    """

    __slots__ = ("_attached", "_error", "_views", "_waiter", "kept_bytes", "nbytes", "offer", "remaining", "sender")

    def __init__(self, nbytes: int, sender: Sender | None = None, kept_bytes: int = 0, offer: int | None = None):
        self.nbytes = self.remaining = nbytes
        self.sender, self.kept_bytes, self.offer = sender, kept_bytes, offer
        self._views: Views = ()
        self._attached: Views | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None

    @abstractmethod
    def allocate(self) -> Views:
        """New memory for the whole body."""

    @abstractmethod
    def attach(self, memory: Memory) -> Views:
        """Receive into this memory from now on; the bytes that have come are copied there.

        Returns: its views, for `detach`.
        Raises:
            ValueError: it does not fit; nothing has changed.
        """

    def on_receive_posted(self) -> None:
        """A receive for it is posted: call the sender, the first time only."""
        if (sender := self.sender) is not None:
            self.sender = None
            sender.on_receive_posted(self)

    def detach(self, views: Views) -> None:
        """Return attached memory: move the body into new memory, unless it has left it already."""
        if self._attached is views:
            self._move(self.allocate())
            self._attached = None

    def buffer(self) -> memoryview:
        """Memory for the next bytes. Do not call this when no byte is missing."""
        if not self._views:
            self._views = self.allocate()
        offset = self.nbytes - self.remaining
        for view in self._views:
            if offset < view.nbytes:
                return view[offset:]
            offset -= view.nbytes
        raise ValueError("no byte of this body is missing")

    def advance(self, count: int) -> None:
        """Account for `count` bytes that were written to the front of `buffer`."""
        self.remaining -= count
        if not self.remaining:
            self._wake()

    def fail(self, error: Exception) -> None:
        """The rest will not come: fail the receive, and release its memory."""
        if self.remaining:
            self._error = error
            self._views = ()
            self._attached = None
            self.sender = None
            self._wake()

    async def wait_complete(self) -> None:
        """Wait for the last byte. Raises the error of `fail`."""
        if self.remaining:
            self._waiter = asyncio.get_running_loop().create_future()
            if self._error is not None:
                self._wake()
            await self._waiter

    def _attach(self, views: Views) -> Views:
        self._move(views)
        self._attached = views
        return views

    def _move(self, views: Views) -> None:
        unmoved = self.nbytes - self.remaining
        for source, into in zip(self._views, views, strict=False):
            count = min(unmoved, source.nbytes)
            into[:count] = source[:count]
            unmoved -= count
        self._views = views

    def _wake(self) -> None:
        if self._waiter is not None:
            resolve(self._waiter, None if self._error is None else self._error.with_traceback(None))


class IncomingMessage(IncomingBody[tuple[Block, ...] | None]):
    """A message, after its header has come."""

    __slots__ = ("_blocks", "header")

    def __init__(self, header: Header, sender: Sender | None = None, kept_bytes: int = 0, offer: int | None = None):
        super().__init__(header.nbytes, sender, kept_bytes, offer)
        self.header = header
        self._blocks: tuple[Block, ...] = ()

    @classmethod
    def complete(cls, header: Header, blocks: tuple[Block, ...]) -> "IncomingMessage":
        """A complete message, which a rank has sent to itself; `blocks` are its own copies."""
        message = cls(header)
        message._blocks = blocks
        message._views = [block.data for block in blocks]
        message.remaining = 0
        return message

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The arrays, as far as they are filled; in new memory unless a receive has attached its own."""
        if not self._blocks and self.header.layouts:
            self._views = self.allocate()
        return self._blocks

    def allocate(self) -> Views:
        self._blocks = blocks_for(self.header.layouts)
        return [block.data for block in self._blocks]

    def attach(self, memory: tuple[Block, ...] | None) -> Views:
        if memory is None:
            return ()
        self._blocks = blocks_for(self.header.layouts, memory)
        return self._attach([block.data for block in self._blocks])

    def fail(self, error: Exception) -> None:
        if self.remaining:
            self._blocks = ()
        super().fail(error)


EMPTY_BODY = IncomingMessage(Header((), None, ()))
"""The body of a frame without one."""


class WrongSize(ValueError):
    """A bare buffer has another size than the receiver's memory. Sizes in bytes."""

    def __init__(self, expected: int, received: int):
        super().__init__(f"the buffer does not fit (expected: {expected} bytes, received: {received} bytes)")
        self.received = received


class IncomingBuffer(IncomingBody[memoryview]):
    """A bare buffer."""

    __slots__ = ()

    def attach(self, memory: memoryview) -> Views:
        if memory.nbytes != self.nbytes:
            raise WrongSize(memory.nbytes, self.nbytes)
        return self._attach((memory,))

    def allocate(self) -> Views:
        return (np.empty(self.nbytes, np.uint8).data,)


class ReceiveMemory(Generic[Memory]):
    """The memory of one receive; the body that the mailbox matches with the receive is moved there."""

    def __init__(self, memory: Memory):
        self._memory = memory
        self._body: IncomingBody[Memory] | None = None
        self._views: Views = ()

    def accept(self, body: IncomingBody[Memory]) -> None:
        """Receive this body into the memory. Raises ValueError if it does not fit."""
        self._views = body.attach(self._memory)
        self._body = body
        body.on_receive_posted()

    def detach(self) -> None:
        """The receive was cancelled: do not write to its memory again."""
        if self._body is not None:
            self._body.detach(self._views)


class Shaped(Protocol):
    """An array, or the layout of an array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its size in each dimension."""


def header_memory(key: Key, note: Any, layouts: Sequence[Shaped]) -> int:
    """The most bytes that a message takes in memory, without the bytes of its arrays.

    Args:
        note: a value that the wire carries; packing and unpacking it by msgpack does not change the result.
    """
    chars = 0
    values = [*key, note]
    for value in values:  # the list grows during the loop
        if value is None or type(value) is int:
            continue
        if isinstance(value, str):
            chars += len(value) if value.isascii() else 4 * len(value)
        elif isinstance(value, (bytes, bytearray, memoryview)):
            chars += memoryview(value).nbytes
        elif isinstance(value, dict):
            values += value
            values += value.values()
        elif isinstance(value, (list, tuple)):
            values += value
    items = len(values) + sum([len(layout.shape) for layout in layouts])
    return FRAME_BYTES + BLOCK_BYTES * len(layouts) + ITEM_BYTES * items + chars


def message_memory(header: Header) -> int:
    """The most bytes that the message with this header takes in memory."""
    return header.nbytes + header_memory(header.key, header.note, header.layouts)
