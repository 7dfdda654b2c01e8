"""Whom one endpoint is connected with, whoever opened the connection.

The one rule: what is asked of a party goes over one connection while that lasts, so that order is kept; and a party
that began anew has no former self here.

Knows connections by what they share, neither sockets nor virtual ones.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from transports.rpc.base import Party
from transports.rpc.session import Talk


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
