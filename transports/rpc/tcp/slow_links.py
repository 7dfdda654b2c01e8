"""An emulated slow network around a connection: the frames that it sends and receives are delayed, in order.

    session → SlowWriter: the endpoint's line up, the link → socket → the other end
    session ← SlowSession: the endpoint's line down        ← socket ← the other end

All connections of an endpoint share its line, each direction apart.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from functools import partial

from transports.emulation.in_flight_queue import AccessLine, InFlightQueue
from transports.emulation.link_timing import LinkTiming
from transports.emulation.options import LinkProfile
from transports.errors import WireError
from transports.rpc.base import Unreachable
from transports.rpc.frames import RpcKind
from transports.rpc.tcp.reassembly import FrameConsumer
from transports.rpc.tcp.scheduler import Writer
from transports.stream.connection import Ending
from transports.stream.writer import LONG_BYTES, OutgoingFrame
from transports.wire.arrays import Block
from transports.wire.frames import PREAMBLE_BYTES, Header


class AccessLines:
    """The access lines of an endpoint, which all of its connections share; None each way if its profile has none."""

    def __init__(self, profile: LinkProfile | None):
        rate = math.inf if profile is None else profile.line
        self.up, self.down = [None if rate == math.inf else AccessLine(rate) for _ in range(2)]


class SlowConnection:
    """Wraps both ends of one connection, so that an emulated slow network lies between it and its socket.

    Args:
        own_address: the address of the connection's endpoint.
        profile: of the link for outgoing frames; None: they are not slowed.
    """

    def __init__(self, own_address: str, profile: LinkProfile | None, access: AccessLines):
        self._own_address, self._profile, self._access = own_address, profile, access
        self._incoming_queue: InFlightQueue | None = None

    def wrap_writer(self, writer: Writer, peer: str) -> Writer:
        """The writer behind the slow link to the party at an address."""
        if self._profile is None:
            return writer
        link = LinkTiming(self._profile, (self._own_address, peer))
        return SlowWriter(writer, InFlightQueue(link, up=self._access.up), self._incoming_queue)

    def wrap_session(self, session: FrameConsumer, on_invalid: Callable[[WireError], None]) -> FrameConsumer:
        """The session behind the endpoint's line."""
        if self._access.down is None:
            return session
        slow = SlowSession(session, self._access.down, on_invalid)
        self._incoming_queue = slow.queue
        return slow


class SlowWriter:
    """A writer behind a slow link, for emulating a slow network on one machine.

    A frame is copied when it is written. It counts as written when its last byte has left, so that the scheduler's
    lanes share the emulated link in turns.

    Args:
        writer: sends each frame on when it has passed the slow link.
        down: the frames that come and are in flight; None: they are not delayed.
    """

    def __init__(self, writer: Writer, queue: InFlightQueue, down: InFlightQueue | None = None):
        self._writer, self._queue, self._incoming_queue = writer, queue, down
        self._loop = asyncio.get_running_loop()

    def write(self, views: Sequence[bytes | memoryview]) -> OutgoingFrame:
        copy = b"".join(views)
        frame = OutgoingFrame((), LONG_BYTES)
        self._loop.call_at(self._queue.send(len(copy), partial(self._arrive, copy)).departure, frame.resolve)
        return frame

    def withdraw(self, frame: OutgoingFrame) -> bool:
        """A written frame still arrives, from its own copy."""
        return False

    def end(self, ending: Ending, error: Exception) -> None:
        self._queue.close()
        self._writer.end(ending, error)

    @property
    def bytes_moved(self) -> float:
        is_moving = self._queue.is_moving or (self._incoming_queue is not None and self._incoming_queue.is_moving)
        return self._loop.time() if is_moving else self._writer.bytes_moved

    def _arrive(self, frame: bytes) -> None:
        self._writer.write([frame])


class SlowSession:
    """A session that receives each complete frame when it has passed its endpoint's line.

    The bytes of a frame are taken to have come at the line's rate until now. So a frame alone is not delayed, and those
    of several senders at once pass one after another.

    Args:
        on_invalid: called with the error of a malformed frame; it ends the connection.
    """

    def __init__(self, session: FrameConsumer, down: AccessLine, on_invalid: Callable[[WireError], None]):
        self._session = session
        self._rate = down.rate
        self._on_invalid = on_invalid
        self.queue = InFlightQueue(LinkTiming(LinkProfile(), ("", "")), up=down)
        self._loop = asyncio.get_running_loop()

    def begin_frame(self, kind: RpcKind, header: Header) -> bool:
        """See `RpcSession`: memory is allocated, or not, when the header comes."""
        return self._session.begin_frame(kind, header)

    def receive(self, kind: RpcKind, header: Header, blocks: tuple[Block, ...] = ()) -> None:
        """See `RpcSession`."""
        self._pass(header, partial(self._session.receive, kind, header, blocks))

    def on_truncated(self, kind: RpcKind, header: Header) -> None:
        """See `RpcSession`."""
        self._pass(header, partial(self._session.on_truncated, kind, header))

    def end(self, error: Unreachable) -> None:
        """See `RpcSession`. Frames that have not passed are dropped."""
        self.queue.close()
        self._session.end(error)

    def _pass(self, header: Header, deliver: Callable[[], None]) -> None:
        nbytes = PREAMBLE_BYTES + header.nbytes
        self.queue.send(nbytes, partial(self._deliver, deliver), self._loop.time() - nbytes / self._rate)

    def _deliver(self, deliver: Callable[[], None]) -> None:
        try:
            deliver()
        except WireError as error:
            self._on_invalid(error)
