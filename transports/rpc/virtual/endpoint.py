"""An endpoint on a virtual network, and its ends of connections.

Two parties exchange only frames in the wire format, so a value that a socket cannot carry is refused here too. Arrays
are copied when they are sent, as a socket's kernel does. An endpoint sends everything through its process, which may be
frozen or dead.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from transports.emulation.in_flight_queue import InFlightQueue
from transports.errors import WireError
from transports.rpc.base import Party, Unreachable
from transports.rpc.connections import BaseEndpoint
from transports.rpc.frames import KINDS, RpcKind
from transports.rpc.reasons import count_reason, reason_of
from transports.rpc.session import RpcSession
from transports.rpc.virtual.process import Process
from transports.wire.arrays import Block
from transports.wire.frames import PREAMBLE_BYTES, Header, Key, encode_head, parse_header, parse_preamble

SCHEME = "virtual://"


class FrameEvent(NamedTuple):
    """A frame at the time when it arrives, for listeners.

    Args:
        time: seconds on the loop's clock.
        source, destination: the parties' names.
        key: the request's number, then the topic of a request or the reason of a rejection.
        nbytes: bytes of its arrays.
    """

    time: float
    source: str
    destination: str
    kind: str
    key: Key
    nbytes: int

    def __str__(self) -> str:
        number, *parts = self.key
        text = " ".join([self.kind, *map(str, parts), f"#{number}"])
        return f"{self.time:.6f} {self.source} → {self.destination}: {text} ({self.nbytes} bytes)"


class NetworkView(Protocol):
    """The network as an endpoint uses it: a `VirtualNetwork`.

    Attributes:
        listeners: called with every frame before it is received.
        scale: each byte of an array stands for this many bytes of a larger run.
    """

    listeners: list[Callable[[FrameEvent], None]]
    scale: float

    def endpoint_at(self, address: str) -> "VirtualEndpoint | None": ...

    def queue_between(self, source: str, destination: str) -> InFlightQueue: ...


class VirtualConnection:
    """One party's end of one connection.

    Args:
        address: the other party's address; perhaps no party listens there.
    """

    def __init__(self, endpoint: "VirtualEndpoint", address: str):
        self.endpoint, self.address = endpoint, address
        self.session = RpcSession(endpoint.handlers, self)
        self.other_end: VirtualConnection | None = None
        self.ended = self._was_reset = False
        self._queue = endpoint.network.queue_between(endpoint.address, address)

    @property
    def activity(self) -> float:
        back = self.endpoint.network.queue_between(self.address, self.endpoint.address)
        return self.endpoint.process.now() if self._queue.is_moving or back.is_moving else 0.0

    def send(
        self,
        kind: RpcKind,
        key: Key,
        blocks: Sequence[Block] = (),
        note: Any = None,
        on_sent: Callable[[], None] = lambda: None,
    ) -> None:
        head = encode_head(kind, key, blocks, note)
        bodies = [bytearray(block.data) for block in blocks]
        nbytes = sum(map(len, bodies))
        self.endpoint.bytes_sent += nbytes
        self.emit(len(head) / self.endpoint.network.scale + nbytes, partial(self._arrive, head, bodies))
        on_sent()

    def withdraw(self, kind: RpcKind, number: int) -> None:
        """Nothing to release: the network has copies of all arrays."""

    def emit(self, nbytes: float, deliver: Callable[[], None]) -> None:
        self.endpoint.process.emit(partial(self._queue.send, nbytes, deliver))

    def connect(self) -> None:
        """Request the connection; frames sent meanwhile follow this request."""
        self.emit(PREAMBLE_BYTES, self._on_connect)

    def deliver(self, head: bytes, bodies: list[bytearray]) -> None:
        """Receive a frame that has arrived here."""
        try:
            preamble = parse_preamble(head, KINDS)
            header = parse_header(preamble, memoryview(head)[PREAMBLE_BYTES:])
        except WireError as error:
            return self._reject_input(error)
        if self.endpoint.network.listeners:
            self._notify(preamble.kind, header)
            self.endpoint.process.emit(partial(self._dispatch, preamble.kind, header, bodies))
        else:
            self._dispatch(preamble.kind, header, bodies)

    def _dispatch(self, kind: RpcKind, header: Header, bodies: list[bytearray]) -> None:
        if self.ended or self._was_reset:
            return
        try:
            if self.session.begin_frame(kind, header):
                self.endpoint.bytes_received += header.nbytes
                parts = zip(header.layouts, bodies, strict=True)
                blocks = tuple([Block(dtype, shape, memoryview(body)) for (dtype, shape), body in parts])
                self.session.receive(kind, header, blocks)
        except WireError as error:
            self._reject_input(error)

    def _reject_input(self, error: WireError) -> None:
        count_reason(self.endpoint.invalid_input, reason_of(error))
        self.close(f"it sent an invalid frame: {error}")

    def _notify(self, kind: RpcKind, header: Header) -> None:
        """Call the listeners. A listener may inject a fault into either party, or end this connection."""
        names = self.address.removeprefix(SCHEME), self.endpoint.process.name
        event = FrameEvent(self.endpoint.process.now(), *names, kind.name, header.key, header.nbytes)
        for listener in self.endpoint.network.listeners:
            listener(event)

    def close(self, reason: str) -> None:
        """End the connection; the other side sees that after the frames sent before have arrived."""
        if not self.ended:
            self.emit(PREAMBLE_BYTES, self._closed_by_peer)
            self.end(reason)

    def kill(self) -> None:
        """The process was killed; its kernel closes the connection."""
        self._queue.send(PREAMBLE_BYTES, self._closed_by_peer)
        self.end("this end was killed")

    def reset(self) -> None:
        """Break the connection: frames in flight are lost, and each side sees the break after the link's delay."""
        reason, self._was_reset = "the connection was reset", True
        self.endpoint.network.queue_between(self.address, self.endpoint.address).send(
            PREAMBLE_BYTES, partial(self.end, reason)
        )
        if self.other_end is not None:
            self.other_end._was_reset = True
            self._queue.send(PREAMBLE_BYTES, partial(self.other_end.end, reason))

    def end(self, reason: str, sent: bool = True) -> None:
        """End this side of the connection."""
        if not self.ended:
            self.ended = True
            self.session.end(Unreachable(self.address, reason, sent))
            self.endpoint.connections.remove(self)

    def _on_connect(self) -> None:
        """Runs when the connection request arrives at the other side."""
        if self._was_reset:
            return
        endpoint = self.endpoint.network.endpoint_at(self.address)
        if endpoint is None:
            back = self.endpoint.network.queue_between(self.address, self.endpoint.address)
            back.send(PREAMBLE_BYTES, partial(self.end, "no endpoint listens there", sent=False))
            return
        self.other_end = endpoint.accept(self)
        self.other_end.emit(PREAMBLE_BYTES, partial(self._on_accepted, endpoint.party))

    def _on_accepted(self, peer: Party) -> None:
        if not self.ended:
            self.endpoint.connections.identify(self, peer)

    def _arrive(self, head: bytes, bodies: list[bytearray]) -> None:
        if self.other_end is not None and not self.other_end.ended and not self._was_reset:
            self.other_end.deliver(head, bodies)

    def _closed_by_peer(self) -> None:
        if self.other_end is not None:
            self.other_end.end("the connection was closed")


class VirtualEndpoint(BaseEndpoint[VirtualConnection]):
    """See `VirtualNetwork.endpoint`.

    Args:
        network: finds other endpoints, and the links to them.
        process: the owner of this endpoint, which is killed and frozen with its process.
    """

    def __init__(self, network: NetworkView, process: Process, incarnation: int, max_in_flight: int):
        super().__init__(f"{SCHEME}{process.name}", incarnation, max_in_flight)
        self.network, self.process = network, process

    @property
    def party(self) -> Party:
        return Party(self.address, self.incarnation)

    async def close(self) -> None:
        self.closed = True
        for connection in self.connections:
            connection.close("this end was closed")
        await self.handlers.close()

    def kill(self) -> None:
        """The process was killed: break its connections, without calling its callbacks."""
        self.closed = True
        self.connections.clear_callbacks()
        for connection in self.connections:
            connection.kill()

    def open_connection(self, address: str) -> VirtualConnection:
        connection = VirtualConnection(self, address)
        self.connections.add(connection)
        connection.connect()
        return connection

    def accept(self, caller: VirtualConnection) -> VirtualConnection:
        """The other side has requested a connection: make this side of it."""
        connection = VirtualConnection(self, caller.endpoint.address)
        connection.other_end = caller
        self.connections.add(connection)
        self.connections.identify(connection, caller.endpoint.party)
        return connection
