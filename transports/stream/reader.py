"""The reader splits the bytes from one peer into frames, and reads each body into its destination. No I/O.

The caller reads into `FrameReader.buffer`, then calls `advance` with the count. Small frames go through one staging
buffer, so that one read may return many; a large body is read directly into its destination. After a large body another
is likely, so the next read into the staging buffer is small, and little of that body is copied twice.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Generic, Protocol

from transports.wire.frames import LIMITS, PREAMBLE_BYTES, FrameKinds, Header, K, Preamble, parse_header, parse_preamble

STAGING_BYTES = 2 * LIMITS.header
DIRECT_BYTES = 16 << 10
PEEK_BYTES = 1 << 10


class Body(Protocol):
    """The destination of a frame's body.

    Attributes:
        remaining: bytes that have not come yet.
    """

    remaining: int

    def buffer(self) -> memoryview:
        """Memory for the next bytes. Do not call this when no byte is missing."""

    def advance(self, count: int) -> None:
        """Account for `count` bytes that were written to the front of `buffer`."""

    def fail(self, error: Exception) -> None:
        """The rest will not come."""


class FrameReceiver(ABC, Generic[K]):
    """Receives the frames that a `FrameReader` reads, by one protocol."""

    @abstractmethod
    def on_header(self, preamble: Preamble[K], header: Header) -> Body:
        """The header of a frame has come; return the destination of its body.

        Raises:
            WireError: the protocol has no such frame, or not now.
        """

    @abstractmethod
    def on_frame(self, preamble: Preamble[K], header: Header, body: Body) -> None:
        """The frame is complete; `body` is what `on_header` returned. Raises WireError as that does."""


class FrameReader(Generic[K]):
    """The state between two reads.

    Args:
        kinds: the kinds of frames of the protocol.

    Attributes:
        direct: whether the last `buffer` was a body's own memory.
    """

    def __init__(self, kinds: FrameKinds[K], receiver: FrameReceiver[K]):
        self._kinds, self._receiver = kinds, receiver
        self._staging = memoryview(bytearray(STAGING_BYTES))
        self._staged = 0
        self._read_size = STAGING_BYTES
        self._begun = False
        self.direct = False
        self._frames = self._parse()
        self._next_part: int | Body = next(self._frames)

    def buffer(self) -> memoryview:
        """Memory for the next bytes from the peer; valid until the next call of any method."""
        part = self._next_part
        self.direct = not isinstance(part, int) and (buffer := part.buffer()).nbytes >= DIRECT_BYTES
        return buffer if self.direct else self._staging[self._staged : self._staged + self._read_size]

    def advance(self, count: int) -> None:
        """Account for `count` bytes that were written to the front of the last `buffer`.

        Raises:
            WireError: the bytes are not frames. Earlier frames are valid; no later byte can be read.
            MemoryError: there is no memory for the announced message.
        """
        part = self._next_part
        if self.direct and not isinstance(part, int):
            self._read_size = PEEK_BYTES
            part.advance(count)
            if not part.remaining:
                self._next_part = next(self._frames)
        else:
            self._staged += count
            self._read_size = STAGING_BYTES
            self._process_staged()

    @property
    def inside(self) -> bool:
        """Whether a frame has begun and is incomplete."""
        return self._begun or self._staged > 0

    @property
    def missing(self) -> int:
        """Bytes that are still to come of the body that is being read."""
        return 0 if isinstance(self._next_part, int) else self._next_part.remaining

    def fail(self, error: Exception) -> None:
        """The stream has ended: fail the incomplete message."""
        if not isinstance(self._next_part, int):
            self._next_part.fail(error)

    def _parse(self) -> Generator[int | Body, memoryview, None]:
        """Yields the number of contiguous bytes needed, or the message that the next bytes belong to."""
        while True:
            self._begun = False
            preamble = parse_preamble((yield PREAMBLE_BYTES), self._kinds)
            self._begun = True  # not told by the bytes needed: a header may have the size of a preamble
            header = parse_header(preamble, (yield preamble.header_bytes) if preamble.header_bytes else b"")
            body = self._receiver.on_header(preamble, header)
            if body.remaining:
                yield body
            self._receiver.on_frame(preamble, header, body)

    def _process_staged(self) -> None:
        """Process the staged bytes as far as possible, and move the rest to the front."""
        start = 0
        while True:
            part = self._next_part
            staged_bytes = self._staged - start
            if isinstance(part, int):
                if staged_bytes < part:
                    break
                self._next_part = self._frames.send(self._staging[start : start + part])
                start += part
            elif staged_bytes:
                start += copy_into_body(self._staging[start : self._staged], part)
                if not part.remaining:
                    self._next_part = next(self._frames)
            else:
                break
        if start < self._staged:
            self._staging[: self._staged - start] = self._staging[start : self._staged]
        self._staged -= start


def copy_into_body(data: memoryview, body: Body) -> int:
    """Copy `data` into the body, at most its missing bytes. Returns the bytes copied."""
    copied = 0
    while body.remaining and copied < data.nbytes:
        buffer = body.buffer()
        count = min(buffer.nbytes, data.nbytes - copied)
        buffer[:count] = data[copied : copied + count]
        body.advance(count)
        copied += count
    return copied
