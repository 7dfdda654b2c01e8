"""What one peer sends, from bytes to bodies: the reader splits the stream into frames; a body takes its bytes. No I/O.

The caller reads into `FrameReader.buffer`, then calls `advance` with the count. Small frames go through one staging
buffer, so that one read may return many; a large body is read directly into the receiver's arrays, if its receive is
posted, else into new memory. After a large body another is likely, so the next read into the staging buffer is small,
and little of that body is copied twice. The arrays of a cancelled receive are not written again.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Generic, Protocol

import numpy as np

from transports.event_loop import resolve
from transports.wire.arrays import Block, landing
from transports.wire.frames import (
    DEFAULT_LIMITS,
    PREAMBLE_BYTES,
    FrameKinds,
    Header,
    K,
    Preamble,
    parse_header,
    parse_preamble,
)

STAGING_BYTES = 2 * DEFAULT_LIMITS.header
DIRECT_BYTES = 16 << 10
PEEK_BYTES = 1 << 10


class Body(Protocol):
    """The destination of a frame's body.

    Attributes:
        missing: bytes that have not come yet.
    """

    missing: int

    def buffer(self) -> memoryview:
        """Memory for the next bytes. Do not call this when no byte is missing."""

    def advance(self, count: int) -> None:
        """Account for `count` bytes that were written to the front of `buffer`."""

    def fail(self, error: Exception) -> None:
        """The rest will not come."""


class IncomingBody(ABC):
    """A body that is being received; its memory is allocated at its first byte, unless a receive has attached its own.

    Args:
        nbytes: its size.
        on_posted: called when the first receive for it is posted.
    """

    __slots__ = ("_attached", "_error", "_views", "_waiter", "missing", "nbytes", "on_posted")

    def __init__(self, nbytes: int, on_posted: Callable[[], None] | None = None):
        self.nbytes = self.missing = nbytes
        self.on_posted = on_posted
        self._views: Sequence[memoryview] = ()
        self._attached: Sequence[memoryview] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None

    @abstractmethod
    def allocate(self) -> Sequence[memoryview]:
        """New memory for the whole body."""

    def post(self) -> None:
        """A receive for it is posted: call `on_posted`, the first time only."""
        if (on_posted := self.on_posted) is not None:
            self.on_posted = None
            on_posted()

    def attach(self, views: Sequence[memoryview]) -> None:
        """Receive into this memory, of the right size, from now on; the bytes that have come are copied there."""
        self._move(views)
        self._attached = views

    def detach(self, views: Sequence[memoryview]) -> None:
        """Return attached memory: move the body into new memory, unless it has left it already."""
        if self._attached is views:
            self._move(self.allocate())
            self._attached = None

    def buffer(self) -> memoryview:
        """Memory for the next bytes. Do not call this when no byte is missing."""
        if not self._views:
            self._views = self.allocate()
        offset = self.nbytes - self.missing
        for view in self._views:
            if offset < view.nbytes:
                return view[offset:]
            offset -= view.nbytes
        raise ValueError("no byte of this body is missing")

    def advance(self, count: int) -> None:
        """Account for `count` bytes that were written to the front of `buffer`."""
        self.missing -= count
        if not self.missing:
            self._wake()

    def fail(self, error: Exception) -> None:
        """The rest will not come: fail the receive, and release its memory."""
        if self.missing:
            self._error, self._views, self._attached, self.on_posted = error, (), None, None
            self._wake()

    def notify(self, waiter: asyncio.Future[None]) -> None:
        """Resolve this future when the last byte has come, or when the body fails."""
        self._waiter = waiter
        if not self.missing or self._error is not None:
            self._wake()

    def _move(self, views: Sequence[memoryview]) -> None:
        left = self.nbytes - self.missing
        for source, into in zip(self._views, views, strict=False):
            count = min(left, source.nbytes)
            into[:count] = source[:count]
            left -= count
        self._views = views

    def _wake(self) -> None:
        if self._waiter is not None:
            resolve(self._waiter, None if self._error is None else self._error.with_traceback(None))


class IncomingMessage(IncomingBody):
    """A message, after its header has come."""

    __slots__ = ("_blocks", "header")

    def __init__(self, header: Header, on_posted: Callable[[], None] | None = None):
        super().__init__(header.nbytes, on_posted)
        self.header = header
        self._blocks: tuple[Block, ...] = ()

    @classmethod
    def complete(cls, header: Header, blocks: tuple[Block, ...]) -> "IncomingMessage":
        """A complete message, which a rank has sent to itself; `blocks` are its own copies."""
        message = cls(header)
        message._blocks, message._views = blocks, [block.data for block in blocks]
        message.missing = 0
        return message

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The arrays, as far as they are filled; in new memory unless a receive has attached its own."""
        if not self._blocks and self.header.layouts:
            self._views = self.allocate()
        return self._blocks

    def allocate(self) -> Sequence[memoryview]:
        self._blocks = landing(self.header.layouts)
        return [block.data for block in self._blocks]

    def attach_arrays(self, into: Sequence[Block]) -> Sequence[memoryview]:
        """Receive into these arrays from now on. Returns their memory, for `detach`.

        Raises:
            ValueError: the arrays do not fit; nothing has changed.
        """
        self._blocks = landing(self.header.layouts, into)
        views = [block.data for block in self._blocks]
        self.attach(views)
        return views

    def fail(self, error: Exception) -> None:
        if self.missing:
            self._blocks = ()
        super().fail(error)


class WrongSize(ValueError):
    """A bare buffer has another size than the receiver's memory. Sizes in bytes."""

    def __init__(self, expected: int, received: int):
        super().__init__(f"the buffer does not fit (expected: {expected} bytes, received: {received} bytes)")
        self.received = received


class IncomingBuffer(IncomingBody):
    """A bare buffer."""

    __slots__ = ()

    def attach_view(self, view: memoryview) -> Sequence[memoryview]:
        """Receive into this memory from now on. Returns what `detach` takes.

        Raises:
            WrongSize: the memory has another size; nothing has changed.
        """
        if view.nbytes != self.nbytes:
            raise WrongSize(view.nbytes, self.nbytes)
        views = (view,)
        self.attach(views)
        return views

    def allocate(self) -> Sequence[memoryview]:
        return (np.empty(self.nbytes, np.uint8).data,)


class FrameReader(Generic[K]):
    """The state between two reads.

    Args:
        kinds: the kinds of frames of the protocol.
        begin: called with each frame's preamble and header when they have come; returns the destination of its body.
        complete: called with both and the body when it is complete.

    Attributes:
        direct: whether the last `buffer` was a body's own memory.
    """

    def __init__(
        self,
        kinds: FrameKinds[K],
        begin: Callable[[Preamble[K], Header], Body],
        complete: Callable[[Preamble[K], Header, Body], None],
    ):
        self._kinds, self._begin, self._complete = kinds, begin, complete
        self._staging = memoryview(bytearray(STAGING_BYTES))
        self._staged = 0
        self._look = STAGING_BYTES
        self.direct = False
        self._frames = self._parse()
        self._want: int | Body = next(self._frames)

    def buffer(self) -> memoryview:
        """Memory for the next bytes from the peer; valid until the next call of any method."""
        want = self._want
        self.direct = not isinstance(want, int) and (buffer := want.buffer()).nbytes >= DIRECT_BYTES
        return buffer if self.direct else self._staging[self._staged : self._staged + self._look]

    def advance(self, count: int) -> None:
        """Account for `count` bytes that were written to the front of the last `buffer`.

        Raises:
            WireError: the bytes are not frames. Earlier frames are valid; no later byte can be read.
            MemoryError: there is no memory for the announced message.
        """
        want = self._want
        if self.direct and not isinstance(want, int):
            self._look = PEEK_BYTES
            want.advance(count)
            if not want.missing:
                self._want = next(self._frames)
        else:
            self._staged += count
            self._look = STAGING_BYTES
            self._process_staged()

    @property
    def inside(self) -> bool:
        """Whether a frame has begun and is incomplete."""
        return self._staged > 0 or self._want != PREAMBLE_BYTES

    def fail(self, error: Exception) -> None:
        """The stream has ended: fail the incomplete message."""
        if not isinstance(self._want, int):
            self._want.fail(error)

    def _parse(self) -> Generator[int | Body, memoryview, None]:
        """Yields the number of contiguous bytes needed, or the message that the next bytes belong to."""
        while True:
            preamble = parse_preamble((yield PREAMBLE_BYTES), self._kinds)
            header = parse_header(preamble, (yield preamble.header_bytes) if preamble.header_bytes else b"")
            body = self._begin(preamble, header)
            if body.missing:
                yield body
            self._complete(preamble, header, body)

    def _process_staged(self) -> None:
        """Process the staged bytes as far as possible, and move the rest to the front."""
        start = 0
        while True:
            want, left = self._want, self._staged - start
            if isinstance(want, int):
                if left < want:
                    break
                self._want = self._frames.send(self._staging[start : start + want])
                start += want
            elif left:
                start += pour(self._staging[start : self._staged], want)
                if not want.missing:
                    self._want = next(self._frames)
            else:
                break
        if start < self._staged:
            self._staging[: self._staged - start] = self._staging[start : self._staged]
        self._staged -= start


def pour(data: memoryview, body: Body) -> int:
    """Copy `data` into the body, at most its missing bytes. Returns the bytes copied."""
    taken = 0
    while body.missing and taken < data.nbytes:
        buffer = body.buffer()
        count = min(buffer.nbytes, data.nbytes - taken)
        buffer[:count] = data[taken : taken + count]
        body.advance(count)
        taken += count
    return taken
