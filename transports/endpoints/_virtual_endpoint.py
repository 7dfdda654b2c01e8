"""One party's end of a virtual network, and of each of its connections.

The one rule: nothing passes between two parties but frames as the wire lays them out, so that what cannot be sent over
a socket cannot be sent here. Arrays are copied when they are sent, as a socket's kernel does.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from transports._blocks import Block
from transports._contract import Key
from transports._errors import WireError
from transports._landing import copied
from transports._wire import PREAMBLE_BYTES, Kind, encode_head, parse_header, parse_preamble
from transports.endpoints._contract import Answer, Endpoint, Handler, Party, Unreachable
from transports.endpoints._desk import Desk
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
        talk_to: the other party, where it is known; else whoever will be found at the address.
    """

    def __init__(self, endpoint: "VirtualEndpoint", address: str, there: Party | None = None):
        self.endpoint, self.address = endpoint, address
        self.talk = Talk(address, endpoint.desk, self, there)
        self.other: Half | None = None
        self.broken = self._deaf = False
        self._way = endpoint.network.way(endpoint.address, address)

    def say(self, kind: Kind, key: Key, blocks: Sequence[Block] = (), note: Any = None) -> None:
        head = encode_head(kind, key, blocks, note)
        bodies = copied(blocks) if blocks else ()
        nbytes = sum([block.nbytes for block in bodies])
        self.endpoint.bytes_sent += nbytes
        self.emit(len(head) + nbytes, partial(self._arrive, head, bodies))

    def withdraw(self, kind: Kind, number: int) -> None:
        """The network has its own copy of everything."""

    def emit(self, nbytes: int, deliver: Callable[[], None]) -> None:
        self.endpoint.process.emit(partial(self._way.send, nbytes, deliver))

    def knock(self) -> None:
        """Ask to be let in; what is said meanwhile follows behind."""
        self.emit(PREAMBLE_BYTES, self._knocked)

    def hear(self, head: bytes, bodies: tuple[Block, ...]) -> None:
        """A frame has arrived here."""
        try:
            preamble = parse_preamble(head)
            header = parse_header(preamble, memoryview(head)[PREAMBLE_BYTES:])
            if self.talk.wants(preamble.kind, header):
                self.endpoint.bytes_received += header.nbytes
                blocks = [Block(*layout, body.data) for layout, body in zip(header.layouts, bodies, strict=True)]
                self.talk.heard(preamble.kind, header, tuple(blocks))
        except WireError as error:
            self.endpoint.rejected[reason_of(error)] += 1
            self.hang_up(f"it sent what no endpoint says: {error}")

    def hang_up(self, reason: str) -> None:
        """End the connection; the other side sees it when what was said before has arrived."""
        if not self.broken:
            self.emit(PREAMBLE_BYTES, self._hung_up)
            self.lose(reason)

    def die(self) -> None:
        """The process is gone; its kernel hangs up for it."""
        self._way.send(PREAMBLE_BYTES, self._hung_up)
        self.lose("this end was killed")

    def reset(self) -> None:
        """The connection breaks by itself: what is under way is lost, and each side sees it when that has arrived."""
        reason, self._deaf = "the connection was reset", True
        self.endpoint.network.way(self.address, self.endpoint.address).send(PREAMBLE_BYTES, partial(self.lose, reason))
        if self.other is not None:
            self.other._deaf = True
            self._way.send(PREAMBLE_BYTES, partial(self.other.lose, reason))

    def lose(self, reason: str, sent: bool = True) -> None:
        """Nothing passes any more."""
        if not self.broken:
            self.broken = True
            self.talk.end(Unreachable(self.address, reason, sent))
            self.endpoint.forget(self)

    def _knocked(self) -> None:
        """At the other side, when the knock has arrived there."""
        endpoint = self.endpoint.network.listening(self.address)
        back = self.endpoint.network.way(self.address, self.endpoint.address)
        if self._deaf:
            return
        if endpoint is None:
            return back.send(PREAMBLE_BYTES, partial(self.lose, "nobody listens there", sent=False))
        self.other = endpoint.let_in(self)
        self.other.emit(PREAMBLE_BYTES, partial(self._let_in, Party(endpoint.address, endpoint.incarnation)))

    def _let_in(self, there: Party) -> None:
        self.talk.there = there

    def _arrive(self, head: bytes, bodies: tuple[Block, ...]) -> None:
        if self.other is not None and not self.other.broken and not self._deaf:
            self.other.hear(head, bodies)

    def _hung_up(self) -> None:
        if self.other is not None:
            self.other.lose("the connection was closed")


class VirtualEndpoint(Endpoint):
    """See `VirtualNetwork.endpoint`.

    Args:
        network: finds others, and the ways to them.
        process: whose end this is; it dies and freezes with it.
    """

    def __init__(self, network: Map, process: Process, incarnation: int, most_under_way: int):
        self.network, self.process = network, process
        self.address, self.incarnation = f"{SCHEME}{process.name}", incarnation
        self.rejected: Counter[str] = Counter()
        self.desk = Desk(most_under_way)
        self.closed = False
        self._halves: list[Half] = []
        self._towards: dict[str, Half] = {}
        self._hearers: list[Callable[[Party], None]] = []

    def __repr__(self) -> str:
        return f"<VirtualEndpoint {self.address} incarnation {self.incarnation}>"

    async def ask(self, address: str, topic: str, *arrays: Any, note: Any = None) -> Answer:
        if self.closed:
            raise Unreachable(address, "this end is closed", sent=False)
        blocks = [Block.of(array) for array in arrays]
        half = self._towards.get(address) or self._dial(address)
        return await half.talk.ask(topic, blocks, note)

    def answer(self, topic: str, handler: Handler, most_bytes: int = 0, most_waiting: int = 1024) -> None:
        self.desk.answer(topic, handler, most_bytes, most_waiting)

    def on_lost(self, hear: Callable[[Party], None]) -> None:
        self._hearers.append(hear)

    @property
    def failed(self) -> Any:
        return self.desk.failed

    async def close(self) -> None:
        self.end("this end was closed")
        await self.desk.close()

    def end(self, reason: str) -> None:
        """Hang up on everybody, and be asked no more; handlers are cancelled with their connections."""
        self.closed = True
        for half in list(self._halves):
            half.hang_up(reason)

    def die(self) -> None:
        """The process is gone, and nobody in it hears of anything."""
        self.closed = True
        self._hearers.clear()
        for half in list(self._halves):
            half.die()

    def halves_to(self, address: str) -> list[Half]:
        return [half for half in self._halves if half.address == address]

    def let_in(self, theirs: Half) -> Half:
        """The other side has knocked: take up this side of the connection."""
        there = Party(theirs.endpoint.address, theirs.endpoint.incarnation)
        for former in self.halves_to(there.address):
            if former.talk.there not in (None, there):
                former.lose("its party began anew")
        half = Half(self, there.address, there)
        half.other = theirs
        self._halves.append(half)
        self._towards.setdefault(there.address, half)
        return half

    def forget(self, half: Half) -> None:
        self._halves.remove(half)
        if self._towards.get(half.address) is half:
            del self._towards[half.address]
        if half.talk.there is not None:
            for hear in self._hearers:
                hear(half.talk.there)

    def _dial(self, address: str) -> Half:
        half = self._towards[address] = Half(self, address)
        self._halves.append(half)
        half.knock()
        return half
