"""One party's end of a virtual network, and of each of its connections.

The one rule: nothing passes between two parties but frames as the wire lays them out, so that what cannot be sent over
a socket cannot be sent here. Arrays are copied when they are sent, as a socket's kernel does.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from transports._blocks import Block
from transports._contract import Key
from transports._errors import WireError
from transports._wire import PREAMBLE_BYTES, Kind, encode_head, parse_header, parse_preamble
from transports.endpoints._common import CommonEndpoint
from transports.endpoints._contract import Party, Unreachable
from transports.endpoints._line import nothing
from transports.endpoints._process import Process
from transports.endpoints._reasons import reason_of
from transports.endpoints._talk import Talk
from transports.endpoints._way import Way

SCHEME = "virtual://"


class Map(Protocol):
    """What an endpoint knows of its network."""

    def listening(self, address: str) -> "VirtualEndpoint | None": ...

    def way(self, source: str, destination: str) -> Way: ...


class Half:
    """One party's end of one connection.

    Args:
        address: of the other one, or of nobody.
    """

    def __init__(self, endpoint: "VirtualEndpoint", address: str):
        self.endpoint, self.address = endpoint, address
        self.talk = Talk(endpoint.desk, self)
        self.other: Half | None = None
        self.ended = self._deaf = False
        self._way = endpoint.network.way(endpoint.address, address)

    def say(
        self,
        kind: Kind,
        key: Key,
        blocks: Sequence[Block] = (),
        note: Any = None,
        out: Callable[[], None] = nothing,
    ) -> None:
        head = encode_head(kind, key, blocks, note)
        bodies = [bytearray(block.data) for block in blocks]
        nbytes = sum(map(len, bodies))
        self.endpoint.bytes_sent += nbytes
        self.emit(len(head) + nbytes, partial(self._arrive, head, bodies))
        out()

    def withdraw(self, kind: Kind, number: int) -> None:
        """The network has its own copy of everything."""

    def emit(self, nbytes: int, deliver: Callable[[], None]) -> None:
        self.endpoint.process.emit(partial(self._way.send, nbytes, deliver))

    def knock(self) -> None:
        """Ask to be let in; what is said meanwhile follows behind."""
        self.emit(PREAMBLE_BYTES, self._knocked)

    def hear(self, head: bytes, bodies: list[bytearray]) -> None:
        """A frame has arrived here."""
        try:
            preamble = parse_preamble(head)
            header = parse_header(preamble, memoryview(head)[PREAMBLE_BYTES:])
            if self.talk.wants(preamble.kind, header):
                self.endpoint.bytes_received += header.nbytes
                parts = zip(header.layouts, bodies, strict=True)
                blocks = tuple([Block(dtype, shape, memoryview(body)) for (dtype, shape), body in parts])
                self.talk.heard(preamble.kind, header, blocks)
        except WireError as error:
            self.endpoint.rejected[reason_of(error)] += 1
            self.hang_up(f"it sent what no endpoint says: {error}")

    def hang_up(self, reason: str) -> None:
        """End the connection; the other side sees it when what was said before has arrived."""
        if not self.ended:
            self.emit(PREAMBLE_BYTES, self._hung_up)
            self.end(reason)

    def die(self) -> None:
        """The process is gone; its kernel hangs up for it."""
        self._way.send(PREAMBLE_BYTES, self._hung_up)
        self.end("this end was killed")

    def reset(self) -> None:
        """The connection breaks by itself: what is under way is lost, and each side sees it when that has arrived."""
        reason, self._deaf = "the connection was reset", True
        self.endpoint.network.way(self.address, self.endpoint.address).send(PREAMBLE_BYTES, partial(self.end, reason))
        if self.other is not None:
            self.other._deaf = True
            self._way.send(PREAMBLE_BYTES, partial(self.other.end, reason))

    def end(self, reason: str, sent: bool = True) -> None:
        """Nothing passes any more."""
        if not self.ended:
            self.ended = True
            self.talk.end(Unreachable(self.address, reason, sent))
            self.endpoint.circle.leave(self)

    def _knocked(self) -> None:
        """At the other side, when the knock has arrived there."""
        if self._deaf:
            return
        endpoint = self.endpoint.network.listening(self.address)
        if endpoint is None:
            back = self.endpoint.network.way(self.address, self.endpoint.address)
            back.send(PREAMBLE_BYTES, partial(self.end, "nobody listens there", sent=False))
            return
        self.other = endpoint.let_in(self)
        self.other.emit(PREAMBLE_BYTES, partial(self._let_in, endpoint.party))

    def _let_in(self, there: Party) -> None:
        if not self.ended:
            self.endpoint.circle.know(self, there)

    def _arrive(self, head: bytes, bodies: list[bytearray]) -> None:
        if self.other is not None and not self.other.ended and not self._deaf:
            self.other.hear(head, bodies)

    def _hung_up(self) -> None:
        if self.other is not None:
            self.other.end("the connection was closed")


class VirtualEndpoint(CommonEndpoint):
    """See `VirtualNetwork.endpoint`.

    Args:
        network: finds others, and the ways to them.
        process: whose end this is; it dies and freezes with it.
    """

    def __init__(self, network: Map, process: Process, incarnation: int, most_under_way: int):
        super().__init__(f"{SCHEME}{process.name}", incarnation, most_under_way)
        self.network, self.process = network, process

    @property
    def party(self) -> Party:
        return Party(self.address, self.incarnation)

    async def close(self) -> None:
        self.closed = True
        for half in self.circle:
            half.hang_up("this end was closed")
        await self.desk.close()

    def die(self) -> None:
        """The process is gone, and nobody in it hears of anything."""
        self.closed = True
        self.circle.hear_nothing()
        for half in self.circle:
            half.die()

    def call(self, address: str) -> Half:
        half = Half(self, address)
        self.circle.join(half)
        half.knock()
        return half

    def let_in(self, theirs: Half) -> Half:
        """The other side has knocked: take up this side of the connection."""
        half = Half(self, theirs.endpoint.address)
        half.other = theirs
        self.circle.join(half)
        self.circle.know(half, theirs.endpoint.party)
        return half
