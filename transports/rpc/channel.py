"""The request protocol on one connection: this end's client and server. No I/O.

    sender                                            receiver
    REQUEST (number, topic), note, arrays         →   a task of the topic's handler begins
                                                  ←   RESPONSE (number), note, arrays
                                                      or REJECTED (number, reason), facts
    CANCEL (number), when the sender was cancelled →  the task is cancelled, and sends nothing

Both ends send requests. Each end numbers its own requests upwards, so the receiver detects a repeated request. Every
wait ends with the connection, which may be a socket or virtual.
"""

from collections.abc import Sequence
from typing import Any

from transports.errors import WireError
from transports.rpc.base import Party, Response, Unreachable
from transports.rpc.client import RpcClient
from transports.rpc.frames import FrameSink, MemoryBudget, RpcKind
from transports.rpc.handlers import Handlers
from transports.rpc.server import RpcServer
from transports.wire.arrays import Block
from transports.wire.frames import Header


class RpcChannel:
    """One end of a connection.

    Args:
        handlers: this endpoint's handlers, for received requests.
        sink: sends this channel's frames.

    Attributes:
        peer: the other party, set after the handshake; no frame is received before.
    """

    def __init__(self, handlers: Handlers, sink: FrameSink):
        budget = MemoryBudget(handlers.max_in_flight)
        self.peer: Party | None = None
        self._client, self._server = RpcClient(sink, budget), RpcServer(handlers, sink, budget)
        self._ended = False

    async def request(self, topic: str, blocks: Sequence[Block], note: Any) -> Response:
        """See `Endpoint.request`."""
        return await self._client.request(topic, blocks, note)

    def accepts(self, kind: RpcKind, header: Header) -> bool:
        """Whether to allocate memory for the body of the frame with this header; a rejection is sent at once.

        Raises:
            WireError: not a frame of a channel.
        """
        match kind, header.key:
            case RpcKind.REQUEST, (int(number), str(topic)):
                return self._server.admits(number, topic, header)
            case RpcKind.RESPONSE, (int(number),):
                return self._client.expects(number, header)
            case (RpcKind.REJECTED, (int(), str())) | (RpcKind.CANCEL, (int(),)) if not header.layouts:
                return True
        raise WireError(f"unexpected kind of frame (kind: {kind.name}, key: {header.key!r})")

    def receive(self, kind: RpcKind, header: Header, blocks: tuple[Block, ...] = ()) -> None:
        """Process an accepted and complete frame.

        Raises:
            WireError: it is malformed.
        """
        match kind, header.key:
            case RpcKind.REQUEST, (int(number), *_) if self.peer is not None:
                self._server.begin(number, self.peer, header, blocks)
            case RpcKind.RESPONSE, (int(number), *_):
                self._client.on_response(number, header, blocks)
            case RpcKind.REJECTED, (int(number), str(reason)):
                self._client.on_rejected(number, reason, header.note)
            case RpcKind.CANCEL, (int(number), *_):
                self._server.cancel(number)

    def on_truncated(self, kind: RpcKind, header: Header) -> None:
        """Drop an accepted request or response that its sender cut short."""
        match kind, header.key:
            case RpcKind.REQUEST, (int(number), *_):
                self._server.release(number)
            case RpcKind.RESPONSE, (int(number), *_):
                self._client.on_truncated(number, header)

    def end(self, error: Unreachable) -> None:
        """The connection has ended: end all waits, and cancel the handlers of requests from the other end."""
        if not self._ended:
            self._ended = True
            self._client.end(error)
            self._server.end()
