"""One end of a connection between two endpoints over TCP, from the first request until the connection ends.

     session  — send → scheduler → [connection] → socket
    [session] ← receive — reassembly ← reader ← connection ← socket

The endpoint may wrap what is in brackets: see `slow_links`. Requests that are sent before the connection is established
wait in the scheduler. The connection ends once.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any

from transports.errors import WireError
from transports.rpc.base import Party, Unreachable
from transports.rpc.connections import BaseEndpoint
from transports.rpc.frames import KINDS, RpcKind
from transports.rpc.reasons import count_reason, reason_of
from transports.rpc.session import RpcSession
from transports.rpc.tcp.reassembly import FrameConsumer, Reassembly
from transports.rpc.tcp.scheduler import SendScheduler, Writer
from transports.stream.connection import ConnectionOwner, Ending, FrameConnection
from transports.stream.reader import FrameReader
from transports.wire.arrays import Block
from transports.wire.frames import Key

UNSENT_BYTES = 256 << 10  # limit of unsent bytes in the socket's buffer: later frames cannot overtake them
MAX_QUEUED_REJECTIONS = 1 << 12  # short frames that may be queued for a party that does not read


class TcpConnection(ConnectionOwner):
    """One end of a connection.

    Args:
        endpoint: the endpoint that owns this end.
        address: the other party's address, as the caller gave it.
        wrap_writer: wraps the writer of the frames to the party at an address.
        wrap_session: wraps the session that receives frames; it reports a malformed one by the callback.

    Attributes:
        ended: whether the connection has ended.
    """

    def __init__(
        self,
        endpoint: "BaseEndpoint[TcpConnection]",
        address: str,
        wrap_writer: Callable[[Writer, str], Writer],
        wrap_session: Callable[[FrameConsumer, Callable[[WireError], None]], FrameConsumer],
    ):
        self.address, self._endpoint, self._wrap_writer = address, endpoint, wrap_writer
        self.session = RpcSession(endpoint.handlers, self)
        self._scheduler = SendScheduler()
        self._reassembly = Reassembly(wrap_session(self.session, self._end_invalid), self._count_received)
        self._reader = FrameReader(KINDS, self._reassembly)
        self._writer: Writer | None = None
        self._valid, self.ended = True, False

    def on_connected(self, sock: socket.socket, peer: Party) -> None:
        """Use this connected socket, after the handshake with this party; the connection owns it from now on."""
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        self._writer = self._wrap_writer(FrameConnection(sock, self._reader, self), peer.address)
        self._scheduler.on_connected(self._writer)

    @property
    def activity(self) -> float:
        return self._writer.bytes_moved if self._writer else 0.0

    def send(
        self,
        kind: RpcKind,
        key: Key,
        blocks: Sequence[Block] = (),
        note: Any = None,
        on_sent: Callable[[], None] = lambda: None,
    ) -> None:
        if self.ended:
            return
        if kind is RpcKind.REJECTED and self._scheduler.queued > MAX_QUEUED_REJECTIONS:
            self.on_invalid(WireError(f"replies that it does not read (waiting: {self._scheduler.queued})"))
            asyncio.get_running_loop().call_soon(self.end, "it sends requests and does not read the replies")
            return
        self._scheduler.send(kind, key, blocks, note, on_sent)
        self._endpoint.bytes_sent += sum([block.nbytes for block in blocks])

    def withdraw(self, kind: RpcKind, number: int) -> None:
        self._scheduler.withdraw(kind, number)

    def on_broken(self, reason: str) -> None:
        if self._reader.inside:
            self.on_invalid(WireError("a frame cut short"))
        self.end(reason)

    def on_invalid(self, error: WireError) -> None:
        """Count invalid input by its reason, once for each connection: it ends the connection."""
        if self._valid:
            self._valid = False
            count_reason(self._endpoint.invalid_input, reason_of(error))

    def end(self, reason: str, sent: bool = True) -> None:
        """End the connection with this reason; every wait on it ends."""
        self.end_for(Unreachable(self.address, reason, sent))

    def end_for(self, error: Unreachable) -> None:
        """End the connection, once; every wait on it raises this error."""
        if self.ended:
            return
        self.ended = True
        self._scheduler.end()
        if self._writer is not None:
            self._writer.end(Ending.DROP, error)
        self._reassembly.end(error)
        self._endpoint.connections.remove(self)

    def _end_invalid(self, error: WireError) -> None:
        self.on_invalid(error)
        self.end(f"it sent an invalid frame: {error}")

    def _count_received(self, nbytes: int) -> None:
        self._endpoint.bytes_received += nbytes
