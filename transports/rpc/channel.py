"""Both ends of the requests on one connection; no I/O.

    sender                                            receiver
    REQUEST (number, topic), note, arrays         →   a task of the topic's handler begins
                                                  ←   RESPONSE (number), note, arrays
                                                      or REJECTED (number, reason), facts
    CANCEL (number), when the sender was cancelled →  the task is cancelled, and sends nothing

Both ends send requests. Each numbers its own upwards, so that one that comes twice is recognized. Every wait ends with
the connection, which may be a socket or a virtual one.
"""

from collections.abc import Sequence
from typing import Any

from transports.errors import WireError
from transports.rpc.base import Party, Response, Unreachable
from transports.rpc.client import RpcClient
from transports.rpc.handlers import Handlers
from transports.rpc.server import RpcServer
from transports.rpc.sink import FrameSink, MemoryBudget
from transports.wire.arrays import Block
from transports.wire.frames import Header, Kind


class RpcChannel:
    """One end of a connection.

    Args:
        handlers: of this endpoint, for the requests received.
        sink: receives the frames to be sent.

    Attributes:
        peer: the other party, once the handshake has proved it; no frame is received before.
    """

    def __init__(self, handlers: Handlers, sink: FrameSink):
        budget = MemoryBudget(handlers.most_under_way)
        self.peer: Party | None = None
        self._client, self._server = RpcClient(sink, budget), RpcServer(handlers, sink, budget)
        self._ended = False

    async def request(self, topic: str, blocks: Sequence[Block], note: Any) -> Response:
        """See `Endpoint.request`."""
        return await self._client.request(topic, blocks, note)

    def accepts(self, kind: Kind, header: Header) -> bool:
        """Whether to allocate memory for the body of the frame with this header; a rejection is sent at once.

        Raises:
            WireError: not a frame of a channel.
        """
        match kind, header.key:
            case Kind.REQUEST, (int(number), str(topic)):
                return self._server.lets_in(number, topic, header)
            case Kind.RESPONSE, (int(number),):
                return self._client.expects(number, header)
            case (Kind.REJECTED, (int(), str())) | (Kind.CANCEL, (int(),)) if not header.layouts:
                return True
        raise WireError(f"a frame that endpoints do not send (kind: {kind.name}, key: {header.key!r})")

    def receive(self, kind: Kind, header: Header, blocks: tuple[Block, ...] = ()) -> None:
        """Take an accepted frame, which is complete.

        Raises:
            WireError: it makes no sense.
        """
        match kind:
            case Kind.REQUEST:
                self._server.begin(self.peer, header, blocks)
            case Kind.RESPONSE:
                self._client.answered(header, blocks)
            case Kind.REJECTED:
                self._client.refused(header)
            case Kind.CANCEL:
                self._server.cancel(header.key[0])

    def broken_off(self, kind: Kind, header: Header) -> None:
        """Drop an accepted request or response of which the rest will not come."""
        if kind is Kind.REQUEST:
            self._server.leave(header.key[0])
        else:
            self._client.broken_off(header)

    def end(self, error: Unreachable) -> None:
        """The connection has ended: end all waits, and cancel the handlers of requests from the other end."""
        if not self._ended:
            self._ended = True
            self._client.end(error)
            self._server.end()
