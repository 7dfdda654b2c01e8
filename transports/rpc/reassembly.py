"""Incoming frames, whole or in parts, many at once: where their bytes go; no I/O.

Memory is allocated for a body only after the channel accepted its header. The bytes of a frame that it did not accept
are counted and dropped.
"""

from collections.abc import Callable

from transports.errors import WireError
from transports.rpc.channel import RpcChannel
from transports.tcp.incoming import Incoming
from transports.tcp.reader import Body
from transports.wire.frames import Header, Kind, Preamble

SCRATCH_BYTES = 64 << 10
TALKING = (Kind.REQUEST, Kind.RESPONSE, Kind.REJECTED, Kind.CANCEL)


class Unwanted:
    """A body that nobody wants.

    Args:
        scratch: where its bytes go, one after another over the same place.
    """

    __slots__ = ("_scratch", "missing")

    def __init__(self, nbytes: int, scratch: memoryview):
        self.missing, self._scratch = nbytes, scratch

    def buffer(self) -> memoryview:
        return self._scratch[: self.missing]

    def advance(self, count: int) -> None:
        self.missing -= count

    def fail(self, error: Exception) -> None:
        self.missing = 0


class BodyPart:
    """So many of the next bytes of a body."""

    __slots__ = ("_whole", "missing")

    def __init__(self, whole: Body, nbytes: int):
        self._whole, self.missing = whole, nbytes

    def buffer(self) -> memoryview:
        return self._whole.buffer()[: self.missing]

    def advance(self, count: int) -> None:
        self._whole.advance(count)
        self.missing -= count

    def fail(self, error: Exception) -> None:
        self._whole.fail(error)


NOTHING = Incoming(Header((), None, ()))


class Reassembly:
    """What comes in over one connection; `begin` and `complete` are what an `Inflow` calls.

    Args:
        received: told the bytes of the arrays of each frame that was wanted and is whole.
    """

    def __init__(self, channel: RpcChannel, received: Callable[[int], None]):
        self._channel, self._received = channel, received
        self._streams: dict[int, tuple[Kind, Incoming | Unwanted]] = {}
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))

    def begin(self, preamble: Preamble, header: Header) -> Body:
        """A frame's header is here; returns where its body goes.

        Raises:
            WireError: no frame of a talk, or a part of what is not on its way.
        """
        if preamble.kind is Kind.PART:
            return self._next_part(preamble.channel, preamble.body_bytes)
        if preamble.kind not in TALKING:
            raise WireError(f"a frame that endpoints do not send (kind: {preamble.kind.name})")
        wanted = self._channel.accepts(preamble.kind, header)
        body = Incoming(header) if wanted else Unwanted(header.nbytes, self._scratch)
        if not preamble.channel:
            return body
        if preamble.channel in self._streams or not header.nbytes:
            raise WireError(f"a body in parts that is none (number: {preamble.channel}, bytes: {header.nbytes})")
        self._streams[preamble.channel] = preamble.kind, body
        return NOTHING

    def complete(self, preamble: Preamble, body: Body) -> None:
        """What `begin` returned is full."""
        if preamble.kind is Kind.PART:
            kind, body = self._streams[preamble.channel]
            if preamble.body_bytes and body.missing:
                return
            del self._streams[preamble.channel]
            if body.missing:
                return self._broken_off(kind, body)
            self._whole(kind, body)
        elif not preamble.channel:
            self._whole(preamble.kind, body)

    def end(self, error: Exception) -> None:
        """Nothing more will come."""
        for _, body in self._streams.values():
            body.fail(error)
        self._streams.clear()

    def _next_part(self, stream: int, nbytes: int) -> Body:
        if stream not in self._streams:
            raise WireError(f"a part of nothing (number: {stream}, bytes: {nbytes})")
        body = self._streams[stream][1]
        if nbytes > body.missing:
            raise WireError(f"a part beyond its body (bytes: {nbytes}, missing: {body.missing})")
        return BodyPart(body, nbytes) if nbytes else NOTHING

    def _whole(self, kind: Kind, body: Body) -> None:
        if isinstance(body, Incoming):
            self._received(body.nbytes)
            self._channel.receive(kind, body.header, body.blocks)
            if kind is Kind.CANCEL:
                self._let_go(body.header.key[0])

    def _broken_off(self, kind: Kind, body: Body) -> None:
        if isinstance(body, Incoming):
            self._channel.broken_off(kind, body.header)

    def _let_go(self, number: int) -> None:
        """The rest of this request is not wanted any more, nor is what has come of it."""
        for stream, (kind, body) in self._streams.items():
            if kind is Kind.REQUEST and isinstance(body, Incoming) and body.header.key[0] == number:
                self._streams[stream] = kind, Unwanted(body.missing, self._scratch)
