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
from transports.rpc.client import Asking
from transports.rpc.handlers import Desk
from transports.rpc.server import Answering
from transports.rpc.sink import Line, Room
from transports.wire.arrays import Block
from transports.wire.frames import Header, Kind


class Talk:
    """One end of a connection.

    Args:
        desk: answers what is asked here.
        line: how frames leave.

    Attributes:
        there: who the other party is, as soon as that is proved; nothing is heard before.
    """

    def __init__(self, desk: Desk, line: Line):
        room = Room(desk.most_under_way)
        self.there: Party | None = None
        self._asking, self._answering = Asking(line, room), Answering(desk, line, room)
        self._ended = False

    async def request(self, topic: str, blocks: Sequence[Block], note: Any) -> Response:
        """See `Endpoint.request`."""
        return await self._asking.request(topic, blocks, note)

    def wants(self, kind: Kind, header: Header) -> bool:
        """A frame's header is here: whether memory is to be taken for its body. What is refused is told so at once.

        Raises:
            WireError: no frame of a talk.
        """
        match kind, header.key:
            case Kind.REQUEST, (int(number), str(topic)):
                return self._answering.lets_in(number, topic, header)
            case Kind.RESPONSE, (int(number),):
                return self._asking.expects(number, header)
            case (Kind.REJECTED, (int(), str())) | (Kind.CANCEL, (int(),)) if not header.layouts:
                return True
        raise WireError(f"a frame that endpoints do not send (kind: {kind.name}, key: {header.key!r})")

    def heard(self, kind: Kind, header: Header, blocks: tuple[Block, ...] = ()) -> None:
        """A frame that was wanted is whole.

        Raises:
            WireError: it makes no sense.
        """
        match kind:
            case Kind.REQUEST:
                self._answering.begin(self.there, header, blocks)
            case Kind.RESPONSE:
                self._asking.answered(header, blocks)
            case Kind.REJECTED:
                self._asking.refused(header)
            case Kind.CANCEL:
                self._answering.cancel(header.key[0])

    def broken_off(self, kind: Kind, header: Header) -> None:
        """The rest of a request or answer that was wanted will not come."""
        if kind is Kind.REQUEST:
            self._answering.leave(header.key[0])
        else:
            self._asking.broken_off(header)

    def end(self, error: Unreachable) -> None:
        """The connection is gone: nobody waits any longer, and nobody works for who cannot hear it."""
        if not self._ended:
            self._ended = True
            self._asking.end(error)
            self._answering.end()
