"""The request protocol on one connection: this end's client and server. No I/O.

    sender                                            receiver
    REQUEST (number, topic), note, arrays         →   a task of the topic's handler begins
                                                  ←   RESPONSE (number), note, arrays
                                                      or REJECTED (number, reason), facts
    CANCEL (number), when the sender was cancelled →  the task is cancelled, and sends nothing

Both ends send requests. Each end numbers its own requests upwards, so the receiver detects a repeated request. Every
wait ends with the connection, which may be a socket or virtual.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from transports.aio.futures import resolve
from transports.errors import WireError
from transports.rpc.base import Party, Rejected, Response, Unreachable
from transports.rpc.frames import FrameSink, RpcKind
from transports.rpc.reasons import FAILED, TOO_LARGE
from transports.rpc.server import Handlers, MemoryBudget, RpcServer
from transports.stream.incoming import message_memory
from transports.wire.arrays import Block
from transports.wire.frames import Header


class RpcClient:
    """The client side: the requests in flight, by number. Each wait ends with a reply or with the connection."""

    def __init__(self, sink: FrameSink, budget: MemoryBudget):
        self._sink, self._budget = sink, budget
        self._pending: dict[int, asyncio.Future[Response]] = {}
        self._next_number = 0
        self._ended_by: Unreachable | None = None

    async def request(self, topic: str, blocks: Sequence[Block], note: Any) -> Response:
        """See `Endpoint.request`."""
        if self._ended_by is not None:
            raise _copy_of(self._ended_by, sent=False)
        number = self._next_number
        self._sink.send(RpcKind.REQUEST, (number, topic), blocks, note)
        self._next_number += 1
        future = self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            return await future
        except asyncio.CancelledError:
            if self._pending.pop(number, None) is not None and self._ended_by is None:
                self._sink.send(RpcKind.CANCEL, (number,))
            raise
        finally:
            self._pending.pop(number, None)
            self._sink.withdraw(RpcKind.REQUEST, number)

    def begin_response(self, number: int, header: Header) -> bool:
        """Reserve memory for a response, or fail its request. Returns whether the response is accepted.

        Raises:
            WireError: no request with this number was sent.
        """
        if not 0 <= number < self._next_number:
            raise WireError(f"a response to no request (number: {number}, sent: {self._next_number})")
        if number not in self._pending:
            return False  # the request was cancelled meanwhile
        memory_bytes = message_memory(header)
        if not self._budget.fits(memory_bytes):
            self._resolve(
                number, Rejected(TOO_LARGE, bytes=self._budget.used_bytes + memory_bytes, limit=self._budget.limit)
            )
            self._sink.send(RpcKind.CANCEL, (number,))
            return False
        self._budget.used_bytes += memory_bytes
        return True

    def on_response(self, number: int, header: Header, blocks: tuple[Block, ...]) -> None:
        """An expected response is complete; its memory now belongs to the caller of `request`."""
        self._budget.used_bytes -= message_memory(header)
        self._resolve(number, Response(blocks, header.note))

    def on_truncated(self, number: int, header: Header) -> None:
        """The server cut an expected response short: fail its request."""
        self._budget.used_bytes -= message_memory(header)
        self._resolve(number, Rejected(FAILED, error="the responder cut the response short"))

    def on_rejected(self, number: int, reason: str, facts: object) -> None:
        """Fail the request with the received rejection. Raises WireError if its facts are malformed."""
        self._resolve(number, _parse_rejection(reason, facts))

    def end(self, error: Unreachable) -> None:
        """Fail all pending and later requests."""
        self._ended_by = error
        for future in list(self._pending.values()):
            resolve(future, _copy_of(error, error.sent))

    def _resolve(self, number: int, outcome: Response | Rejected) -> None:
        future = self._pending.pop(number, None)
        if future is not None:
            resolve(future, outcome)


def _copy_of(error: Unreachable, sent: bool) -> Unreachable:
    """A copy of the error for one waiting request; an exception that is raised twice would collect both tracebacks."""
    return Unreachable(error.address, error.reason, sent, wrong_key=error.wrong_key, silent=error.silent)


def _parse_rejection(reason: str, facts: object) -> Rejected:
    """The `Rejected` that the handler raised, parsed from its frame.

    Raises:
        WireError: its facts are malformed.
    """
    if not isinstance(facts, dict) or not all(type(name) is str for name in facts):
        raise WireError("facts of a rejection without names")
    with suppress(TypeError):
        return Rejected(reason, **facts)
    raise WireError("facts of a rejection with invalid names")


class RpcSession:
    """One end of a connection.

    Args:
        handlers: this endpoint's handlers, for received requests.
        sink: sends this session's frames.

    Attributes:
        peer: the other party, set after the handshake; no frame is received before.
    """

    def __init__(self, handlers: Handlers, sink: FrameSink):
        budget = MemoryBudget(handlers.max_in_flight)
        self.peer: Party | None = None
        self._client = RpcClient(sink, budget)
        self._server = RpcServer(handlers, sink, budget)

    async def request(self, topic: str, blocks: Sequence[Block], note: Any) -> Response:
        """See `Endpoint.request`."""
        return await self._client.request(topic, blocks, note)

    def begin_frame(self, kind: RpcKind, header: Header) -> bool:
        """Reserve memory for the frame with this header, or reject it. Returns whether it is accepted.

        Raises:
            WireError: not a frame of a session.
        """
        match kind, header.key:
            case RpcKind.REQUEST, (int(number), str(topic)):
                return self._server.begin_request(number, topic, header)
            case RpcKind.RESPONSE, (int(number),):
                return self._client.begin_response(number, header)
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
                self._server.start_handler(number, self.peer, header, blocks)
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
        self._client.end(error)
        self._server.end()
