"""What every endpoint promises: one party's end of an open network.

A `Transport` joins a fixed number of ranks and ends with them. Here nobody knows beforehand who takes part: a party
listens at an address, asks others at theirs, and learns of each request by itself whether it was answered, refused, or
lost with whoever should have answered. Endpoints know addresses, bytes and time; they must not know stages, steps or
membership.
"""

import asyncio
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from transports.errors import TransportError
from transports.wire.arrays import Block


class Party(NamedTuple):
    """Who speaks, as the handshake proved it.

    Args:
        address: where it listens, as it names itself: over TCP a numeric one, whatever name it was asked by.
        incarnation: drawn afresh at each opening of an endpoint, so that a restarted party is not its former self.
    """

    address: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Request:
    """What a party was asked.

    Args:
        sender: who asks.
        topic: names the handler.
        note: anything small that msgpack can carry; not to be believed before it is checked.
        blocks: the arrays, in the order they were given.
    """

    sender: Party
    topic: str
    note: Any = None
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True)
class Response:
    """What a handler returns and a sender gets; on the asking side `blocks` are `Block`s, in the order given."""

    blocks: tuple[Any, ...] = ()
    note: Any = None


class Rejected(TransportError):
    """Raised by a handler, and again at the sender: the request was understood and will not be done.

    Args:
        reason: one word or a short phrase by which programs tell rejections apart ("stale", "busy", …).
        facts: small numbers and strings that go with it.
    """

    def __init__(self, reason: str, **facts: Any):
        told = ", ".join(f"{name}: {value}" for name, value in facts.items())
        super().__init__(f"{reason} ({told})" if told else reason)
        self.reason, self.facts = reason, facts


SAME_KEY = "give every party the same PIPELINED_KEY or PIPELINED_KEY_FILE"
"""What is to be done where two ends hold no one key."""

_FACTS = re.compile(r"[(:;'\"\[]|, got")


def reason_of(error: Exception) -> str:
    """The words of an error before its facts: "too many blocks (got: 65, limit: 64)" is counted as "too many blocks".

    No text of a stranger becomes part of a reason, so the reasons in `Endpoint.rejected` stay few.
    """
    return _FACTS.split(str(error), maxsplit=1)[0].strip() or type(error).__name__


class Unreachable(TransportError):
    """No answer will come: nobody listens there, the connection broke, or this end closed.

    Whether the request was carried out is unknown, unless `sent` is False.

    Args:
        wrong_key: whether the two ends hold no one key; asking again makes none fit.
    """

    def __init__(self, address: str, reason: str, sent: bool = True, wrong_key: bool = False):
        super().__init__(f"{address} cannot be reached: {reason}")
        self.address, self.reason, self.sent, self.wrong_key = address, reason, sent, wrong_key


Handler = Callable[[Request], Awaitable[Response]]


class Endpoint(ABC):
    """One party's end. Every coroutine runs on the event loop that opened it.

    Attributes:
        address: where this party is asked; ports are real here, never 0.
        incarnation: of this opening.
        rejected: how often what came in was not fit to be heard, by named reason: each cost its connection, no more.
        refused: how often a request was refused here, by reason.
        bytes_sent, bytes_received: payload so far.
    """

    address: str
    incarnation: int
    rejected: Counter[str]
    refused: Counter[str]
    bytes_sent: int = 0
    bytes_received: int = 0

    @abstractmethod
    async def request(self, address: str, topic: str, *arrays: Any, note: Any = None) -> Response:
        """Ask the party at an address, connecting first where need be, and wait for its answer, without a time-out.

        Questions of one topic to one party are delivered in the order asked, and answered in any; a large one does not
        hold up those of other topics. The arrays' memory is the caller's again when this returns or raises.

        Raises:
            Rejected: as the other's handler raised it, or "unknown topic", "too large", "busy", by its endpoint, or
                "failed", with the error, where the handler did; "too large" also of an answer that finds no room here.
            Unreachable: see there; at once when the connection breaks.
            WireError: a note or array that the wire cannot carry.
        Cancelled: the other side learns it and cancels its handler, if it has begun; it may have been carried out.
            So it does when the connection breaks, for nobody can hear the answer.
        """

    @abstractmethod
    def handle(self, topic: str, handler: Handler, most_bytes: int = 0, most_waiting: int = 1024) -> None:
        """From now on let this handler answer requests of a topic, each in a task of its own, a child of the endpoint.

        Args:
            handler: gives arrays that nobody changes any more, for they are sent from where they lie.
            most_bytes: arrays beyond this are refused ("too large") before memory is taken for them.
            most_waiting: requests that one sender may have under way here at once; more are refused ("busy").
        A handler that raises anything but `Rejected` or `TransportError` fails the endpoint: see `failed`.
        """

    @abstractmethod
    def on_lost(self, hear: Callable[[Party], None]) -> None:
        """Call `hear` whenever the connection with a party breaks or is closed, whichever side had opened it.

        Two parties that call one another at the same moment have two connections; the last one counts. A callback that
        raises fails the endpoint (see `failed`), which goes on.
        """

    @property
    @abstractmethod
    def failed(self) -> "asyncio.Future[None]":
        """Raises the first error of a handler, of an `on_lost` callback or of the acceptor; never done otherwise.

        The owner of the endpoint awaits it.
        """

    @abstractmethod
    async def close(self) -> None:
        """Answer nothing more, cancel the handlers, tell the others by hanging up. Idempotent."""

    async def __aenter__(self) -> "Endpoint":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
