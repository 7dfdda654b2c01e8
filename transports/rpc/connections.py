"""The connections of one endpoint, and the part of an endpoint that does not depend on how a connection is made.

All requests to one party go over one connection while that connection lasts, so their order is kept. When a party
restarts, its former connections are closed. No I/O is done here.
"""

import asyncio
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from transports.rpc.base import Endpoint, Handler, Party, Response, Unreachable
from transports.rpc.handlers import Desk
from transports.rpc.session import Talk
from transports.wire.arrays import Block


class Connected(Protocol):
    """One end of a connection.

    Attributes:
        address: of the other party, as it was asked, or as it named itself.
    """

    address: str
    talk: Talk

    def end(self, reason: str) -> None:
        """Nothing passes any more; the circle is left."""


class Circle:
    """All connections of one endpoint.

    Args:
        failed: called with each error that an `on_lost` callback raises.
    """

    def __init__(self, failed: Callable[[Exception], None]):
        self._failed = failed
        self._connections: dict[Connected, None] = {}
        self._towards: dict[str, Connected] = {}
        self._hearers: list[Callable[[Party], None]] = []

    def __iter__(self) -> Iterator[Connected]:
        return iter(list(self._connections))

    def towards(self, address: str) -> Connected | None:
        """The connection over which to ask at an address."""
        return self._towards.get(address)

    def join(self, connection: Connected) -> None:
        """A connection is wanted, or there: the first one towards its address is the one to ask over."""
        self._connections[connection] = None
        self._towards.setdefault(connection.address, connection)

    def know(self, connection: Connected, there: Party) -> None:
        """It is proved who is at the other end."""
        for former in self:
            known = former.talk.there
            if known is not None and known.address == there.address and known != there:
                former.end("its party began anew")
        connection.talk.there = there
        self._towards.setdefault(there.address, connection)

    def leave(self, connection: Connected) -> None:
        """A connection has ended: ask over another with the same party, or tell who wants to hear that it is lost."""
        del self._connections[connection]
        there = connection.talk.there
        for address, towards in list(self._towards.items()):
            if towards is connection:
                del self._towards[address]
                self._replace(address)
        if there is not None and all(other.talk.there != there for other in self._connections):
            self._tell_lost(there)

    def on_lost(self, hear: Callable[[Party], None]) -> None:
        self._hearers.append(hear)

    def hear_nothing(self) -> None:
        self._hearers.clear()

    def _tell_lost(self, there: Party) -> None:
        """Run every callback: this runs inside the reader and the acceptor, which one bad callback must not end."""
        for hear in self._hearers:
            try:
                hear(there)
            except Exception as error:
                self._failed(error)

    def _replace(self, address: str) -> None:
        for other in self._connections:
            if other.address == address or (other.talk.there is not None and other.talk.there.address == address):
                self._towards[address] = other
                return


class CommonEndpoint(Endpoint):
    """One party's end, however its connections are made.

    Args:
        most_under_way: bytes of messages that one connection may have in this endpoint's memory, headers included.
    """

    def __init__(self, address: str, incarnation: int, most_under_way: int):
        self.address, self.incarnation = address, incarnation
        self.rejected: Counter[str] = Counter()
        self.closed = False
        self.desk = Desk(most_under_way)
        self.circle = Circle(self.desk.fail)
        self.refused = self.desk.refused

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address} incarnation {self.incarnation}>"

    async def request(self, address: str, topic: str, *arrays: Any, note: Any = None) -> Response:
        if self.closed:
            raise Unreachable(address, "this end is closed", sent=False)
        blocks = [Block.of(array) for array in arrays]
        connection = self.circle.towards(address)
        if connection is None:
            connection = self.call(address)
        return await connection.talk.request(topic, blocks, note)

    @abstractmethod
    def call(self, address: str) -> Connected:
        """A connection that is being made; it has joined the circle, and what is asked over it waits there."""

    def handle(self, topic: str, handler: Handler, most_bytes: int = 0, most_waiting: int = 1024) -> None:
        self.desk.handle(topic, handler, most_bytes, most_waiting)

    def on_lost(self, hear: Callable[[Party], None]) -> None:
        self.circle.on_lost(hear)

    @property
    def failed(self) -> "asyncio.Future[None]":
        return self.desk.failed
