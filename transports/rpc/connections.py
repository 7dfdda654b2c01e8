"""The connections of one endpoint, and the part of an endpoint that does not depend on how a connection is made.

All requests to one party go over one connection while that connection lasts, so their order is kept. When a party
restarts, its former connections are closed. No I/O.
"""

import asyncio
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from transports.rpc.base import Endpoint, Handler, Party, Response, Unreachable
from transports.rpc.server import Handlers
from transports.rpc.session import RpcSession
from transports.wire.arrays import Block


class ConnectionEnd(Protocol):
    """One end of a connection.

    Attributes:
        address: the other party's address: the one that was called, or the one from its hello.
    """

    address: str
    session: RpcSession

    @property
    def activity(self) -> float:
        """See `Endpoint.activity_with`."""

    def end(self, reason: str) -> None:
        """End the connection and remove it from the table."""


C = TypeVar("C", bound=ConnectionEnd)


class ConnectionTable(Generic[C]):
    """The connections of one endpoint, by the address of the other party.

    Args:
        on_failure: called with each error that a callback of `add_lost_callback` raises.
    """

    def __init__(self, on_failure: Callable[[Exception], None]):
        self._on_failure = on_failure
        self._connections: dict[C, None] = {}
        self._by_address: dict[str, C] = {}
        self._lost_callbacks: dict[Callable[[Party], None], None] = {}

    def __iter__(self) -> Iterator[C]:
        return iter(list(self._connections))

    def find(self, address: str) -> C | None:
        """The connection for requests to an address."""
        return self._by_address.get(address)

    def add(self, connection: C) -> None:
        """Add a connection; requests to its address go over the first one."""
        self._connections[connection] = None
        self._by_address.setdefault(connection.address, connection)

    def identify(self, connection: C, peer: Party) -> None:
        """Record the party at the other end after the handshake; end connections of its former incarnation."""
        for former in self:
            former_peer = former.session.peer
            if former_peer is not None and former_peer.address == peer.address and former_peer != peer:
                former.end("the party restarted")
        connection.session.peer = peer
        self._by_address.setdefault(peer.address, connection)

    def remove(self, connection: C) -> None:
        """Remove an ended connection; if it was the last one with its party, run the callbacks."""
        del self._connections[connection]
        peer = connection.session.peer
        for address, current in list(self._by_address.items()):
            if current is connection:
                del self._by_address[address]
                self._replace(address)
        if peer is not None and all(open_connection.session.peer != peer for open_connection in self._connections):
            self._report_lost(peer)

    def add_lost_callback(self, callback: Callable[[Party], None]) -> Callable[[], object]:
        self._lost_callbacks[callback] = None
        return partial(self._lost_callbacks.pop, callback, None)

    def clear_callbacks(self) -> None:
        self._lost_callbacks.clear()

    def _report_lost(self, peer: Party) -> None:
        """Run every callback. An error is reported, not raised: the caller is the reader or the acceptor."""
        for callback in list(self._lost_callbacks):
            try:
                callback(peer)
            except Exception as error:
                self._on_failure(error)

    def _replace(self, address: str) -> None:
        for connection in self._connections:
            if connection.address == address or (
                connection.session.peer is not None and connection.session.peer.address == address
            ):
                self._by_address[address] = connection
                return


class BaseEndpoint(Endpoint, Generic[C]):
    """The part of an endpoint that does not depend on how connections are made.

    Args:
        max_in_flight: bytes of messages that one connection may have in this endpoint's memory, headers included.
    """

    def __init__(self, address: str, incarnation: int, max_in_flight: int):
        self.address, self.incarnation = address, incarnation
        self.invalid_input: Counter[str] = Counter()
        self.closed = False
        self.handlers = Handlers(max_in_flight)
        self.connections = ConnectionTable[C](self.handlers.fail)
        self.rejected_requests = self.handlers.rejected_requests

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address} incarnation {self.incarnation}>"

    async def request(self, address: str, topic: str, *arrays: Any, note: Any = None) -> Response:
        if self.closed:
            raise Unreachable(address, "this end is closed", sent=False)
        blocks = [Block.of(array) for array in arrays]
        connection = self.connections.find(address)
        if connection is None:
            connection = self.open_connection(address)
        return await connection.session.request(topic, blocks, note)

    def activity_with(self, address: str) -> float:
        connection = self.connections.find(address)
        return connection.activity if connection else 0.0

    @abstractmethod
    def open_connection(self, address: str) -> C:
        """Start a connection and add it to the table; its requests wait until it is established."""

    def handle(self, topic: str, handler: Handler, max_bytes: int = 0, max_waiting: int = 1024) -> None:
        self.handlers.handle(topic, handler, max_bytes, max_waiting)

    def add_lost_callback(self, callback: Callable[[Party], None]) -> Callable[[], object]:
        return self.connections.add_lost_callback(callback)

    @property
    def failed(self) -> "asyncio.Future[None]":
        return self.handlers.failed
