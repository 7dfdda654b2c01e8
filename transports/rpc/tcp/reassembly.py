"""Reassembly of incoming frames, whole or in parts, many at once. No I/O.

Memory is allocated for a body only after the session has accepted its header. The bytes of a frame that the session did
not accept are counted and dropped.
"""

from collections.abc import Callable
from typing import Protocol

from transports.errors import WireError
from transports.rpc.base import Unreachable
from transports.rpc.frames import RpcKind
from transports.stream.incoming import EMPTY_BODY, IncomingMessage
from transports.stream.reader import Body, FrameReceiver
from transports.wire.arrays import Block
from transports.wire.frames import Header, Preamble

SCRATCH_BYTES = 64 << 10


class DiscardedBody:
    """A body that was not accepted.

    Args:
        scratch: the memory that its bytes are read into, each read over the one before.
    """

    __slots__ = ("_scratch", "remaining")

    def __init__(self, nbytes: int, scratch: memoryview):
        self.remaining, self._scratch = nbytes, scratch

    def buffer(self) -> memoryview:
        return self._scratch[: self.remaining]

    def advance(self, count: int) -> None:
        self.remaining -= count

    def fail(self, error: Exception) -> None:
        self.remaining = 0


class BodyPart:
    """The next `nbytes` bytes of a body."""

    __slots__ = ("_body", "remaining")

    def __init__(self, whole: Body, nbytes: int):
        self._body, self.remaining = whole, nbytes

    def buffer(self) -> memoryview:
        return self._body.buffer()[: self.remaining]

    def advance(self, count: int) -> None:
        self._body.advance(count)
        self.remaining -= count

    def fail(self, error: Exception) -> None:
        self._body.fail(error)


class FrameConsumer(Protocol):
    """Accepts or refuses each frame by its header, and receives those accepted: `RpcSession`, or a wrapper of it."""

    def begin_frame(self, kind: RpcKind, header: Header) -> bool: ...
    def receive(self, kind: RpcKind, header: Header, blocks: tuple[Block, ...] = ()) -> None: ...
    def on_truncated(self, kind: RpcKind, header: Header) -> None: ...
    def end(self, error: Unreachable) -> None: ...


class Reassembly(FrameReceiver[RpcKind]):
    """The incoming frames of one connection, or of many at once in parts.

    Args:
        on_received: called with the bytes of the arrays of each accepted frame that is complete.
    """

    def __init__(self, session: FrameConsumer, on_received: Callable[[int], None]):
        self._session, self._on_received = session, on_received
        self._streams: dict[int, tuple[RpcKind, IncomingMessage | DiscardedBody]] = {}
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))

    def on_header(self, preamble: Preamble[RpcKind], header: Header) -> Body:
        if preamble.kind is RpcKind.PART:
            return self._next_part(preamble.number, preamble.body_bytes)
        accepted = self._session.begin_frame(preamble.kind, header)
        body = IncomingMessage(header) if accepted else DiscardedBody(header.nbytes, self._scratch)
        if not preamble.number:
            return body
        if preamble.number in self._streams or not header.nbytes:
            raise WireError(f"invalid start of a body in parts (number: {preamble.number}, bytes: {header.nbytes})")
        self._streams[preamble.number] = preamble.kind, body
        return EMPTY_BODY

    def on_frame(self, preamble: Preamble[RpcKind], header: Header, body: Body) -> None:
        if preamble.kind is RpcKind.PART:
            kind, body = self._streams[preamble.number]
            if preamble.body_bytes and body.remaining:
                return
            del self._streams[preamble.number]
            if body.remaining:
                return self._on_truncated(kind, body)
            self._deliver(kind, body)
        elif not preamble.number:
            self._deliver(preamble.kind, body)

    def end(self, error: Unreachable) -> None:
        """The connection has ended: end the session, and fail all incomplete bodies."""
        self._session.end(error)
        for _, body in self._streams.values():
            body.fail(error)
        self._streams.clear()

    def _next_part(self, stream: int, nbytes: int) -> Body:
        if stream not in self._streams:
            raise WireError(f"a part of nothing (number: {stream}, bytes: {nbytes})")
        body = self._streams[stream][1]
        if nbytes > body.remaining:
            raise WireError(f"a part beyond its body (bytes: {nbytes}, missing: {body.remaining})")
        return BodyPart(body, nbytes) if nbytes else EMPTY_BODY

    def _deliver(self, kind: RpcKind, body: Body) -> None:
        if isinstance(body, IncomingMessage):
            self._on_received(body.nbytes)
            self._session.receive(kind, body.header, body.blocks)
            if kind is RpcKind.CANCEL:
                self._discard_request(body.header.key[0])

    def _on_truncated(self, kind: RpcKind, body: Body) -> None:
        if isinstance(body, IncomingMessage):
            self._session.on_truncated(kind, body.header)

    def _discard_request(self, number: int | str) -> None:
        """Drop a cancelled request: free the bytes that have come, and ignore the rest."""
        for stream, (kind, body) in self._streams.items():
            if kind is RpcKind.REQUEST and isinstance(body, IncomingMessage) and body.header.key[0] == number:
                self._streams[stream] = kind, DiscardedBody(body.remaining, self._scratch)
