"""An emulated slow network before and behind a connection: what it sends and what it receives is late, in order.

    session → SlowWriter: the endpoint's line up, the link → socket → the other end
    session ← SlowSession: the endpoint's line down        ← socket ← the other end

All connections of an endpoint share its line, each direction apart.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from functools import partial

from transports.emulation.delay_line import AccessLine, DelayLine
from transports.emulation.link import SlowLink
from transports.emulation.options import LinkProfile
from transports.errors import WireError
from transports.rpc.frames import RpcKind
from transports.rpc.session import RpcSession
from transports.rpc.tcp.scheduler import Writer
from transports.stream.writer import LONG_BYTES, OutgoingFrame
from transports.wire.arrays import Block
from transports.wire.frames import PREAMBLE_BYTES, Header


class SharedLine:
    """The line of an endpoint, which all of its connections share.

    Args:
        rate: bytes a second, each way.
    """

    def __init__(self, rate: float):
        self.up, self.down = AccessLine(rate), AccessLine(rate)

    @classmethod
    def of(cls, profile: LinkProfile | None) -> "SharedLine | None":
        """The line of this profile; None: it has none."""
        return None if profile is None or profile.line == math.inf else cls(profile.line)


class SlowWriter:
    """A writer behind a slow link, for emulating a slow network on one machine.

    A frame is copied when it is written. It counts as written when its last byte has left, so that the scheduler's
    lanes share the emulated link in turns.

    Args:
        writer: sends each frame on when it has passed the slow link.
    """

    def __init__(self, writer: Writer, delay_line: DelayLine):
        self._writer, self.delay_line = writer, delay_line
        self._loop = asyncio.get_running_loop()

    def write(self, views: Sequence[bytes | memoryview]) -> OutgoingFrame:
        copy = b"".join(views)
        frame = OutgoingFrame((), LONG_BYTES)
        self._loop.call_at(self.delay_line.send(len(copy), partial(self._arrive, copy)).departure, frame.resolve)
        return frame

    def withdraw(self, frame: OutgoingFrame) -> bool:
        """A written frame still arrives, from its own copy."""
        return False

    def close(self) -> None:
        self.delay_line.close()

    def _arrive(self, frame: bytes) -> None:
        self._writer.write([frame])


class SlowSession:
    """A session that receives each complete frame when it has passed its endpoint's line.

    The bytes of a frame are taken to have come at the line's rate until now. So a frame alone is not delayed, and those
    of several senders at once pass one after another.

    Args:
        invalid: called with the error of a malformed frame; it ends the connection.
    """

    def __init__(self, session: RpcSession, down: AccessLine, invalid: Callable[[WireError], None]):
        self._session, self._rate, self._invalid = session, down.rate, invalid
        self.delay_line, self._loop = DelayLine(SlowLink(LinkProfile(), ("", "")), up=down), asyncio.get_running_loop()

    def accepts(self, kind: RpcKind, header: Header) -> bool:
        """See `RpcSession`: memory is allocated, or not, when the header comes."""
        return self._session.accepts(kind, header)

    def receive(self, kind: RpcKind, header: Header, blocks: tuple[Block, ...] = ()) -> None:
        """See `RpcSession`."""
        self._pass(header, partial(self._session.receive, kind, header, blocks))

    def on_truncated(self, kind: RpcKind, header: Header) -> None:
        """See `RpcSession`."""
        self._pass(header, partial(self._session.on_truncated, kind, header))

    def close(self) -> None:
        """Drop what has not passed."""
        self.delay_line.close()

    def _pass(self, header: Header, deliver: Callable[[], None]) -> None:
        nbytes = PREAMBLE_BYTES + header.nbytes
        self.delay_line.send(nbytes, partial(self._deliver, deliver), self._loop.time() - nbytes / self._rate)

    def _deliver(self, deliver: Callable[[], None]) -> None:
        try:
            deliver()
        except WireError as error:
            self._invalid(error)
