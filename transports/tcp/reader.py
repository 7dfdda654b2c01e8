"""The reader: splits the byte stream from one peer into frames. No I/O.

The caller reads into `buffer`, then calls `advance` with the count. Small frames go through one staging buffer, so that
one read may return many; the body of a large message is read directly into its arrays. After a large body another is
likely, so the next read into the staging buffer is small, and little of that body is copied twice.
"""

from collections.abc import Callable, Generator
from typing import Protocol

from transports.wire.frames import DEFAULT_LIMITS, PREAMBLE_BYTES, Header, Preamble, parse_header, parse_preamble

STAGING_BYTES = 2 * DEFAULT_LIMITS.header
DIRECT_BYTES = 16 << 10
GLIMPSE_BYTES = 1 << 10


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


class Inflow:
    """The state between two reads.

    Args:
        begin: called with each frame's preamble and header when they have come; returns the memory for its body.
        complete: called when the body is complete too.

    Attributes:
        direct: whether the last `buffer` was a body's own memory.
    """

    def __init__(
        self,
        begin: Callable[[Preamble, Header], Body],
        complete: Callable[[Preamble, Body], None],
    ):
        self._begin, self._complete = begin, complete
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
        if self.direct:
            self._look = GLIMPSE_BYTES
            self._want.advance(count)
            if not self._want.missing:
                self._want = next(self._frames)
        else:
            self._staged += count
            self._look = STAGING_BYTES
            self._settle()

    @property
    def inside(self) -> bool:
        """Whether a frame has begun and is incomplete."""
        return self._staged > 0 or self._want != PREAMBLE_BYTES

    def fail(self, error: Exception) -> None:
        """The stream has ended: fail the incomplete message."""
        if not isinstance(self._want, int):
            self._want.fail(error)

    def _parse(self) -> Generator[int | Body, memoryview | None, None]:
        """Yields the number of contiguous bytes needed, or the message that the next bytes belong to."""
        while True:
            preamble = parse_preamble((yield PREAMBLE_BYTES))
            header = parse_header(preamble, (yield preamble.header_bytes) if preamble.header_bytes else b"")
            incoming = self._begin(preamble, header)
            if incoming.missing:
                yield incoming
            self._complete(preamble, incoming)

    def _settle(self) -> None:
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


def pour(data: memoryview, incoming: Body) -> int:
    """Copy `data` into the message, at most its missing bytes. Returns the bytes copied."""
    taken = 0
    while incoming.missing and taken < data.nbytes:
        buffer = incoming.buffer()
        count = min(buffer.nbytes, data.nbytes - taken)
        buffer[:count] = data[taken : taken + count]
        incoming.advance(count)
        taken += count
    return taken
