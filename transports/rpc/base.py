"""The contract of every endpoint: one party's end of an open network.

A `Transport` joins a fixed number of ranks and ends with them. On an open network the parties are not known in advance:
a party listens at an address and sends requests to the addresses of others. Each request ends with a response, a
rejection, or the loss of the connection. Endpoints deal with addresses, bytes and time, not with stages, steps or
membership.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from transports.errors import TransportError
from transports.wire.arrays import Block


class Party(NamedTuple):
    """The identity of a party, proved by the handshake.

    Args:
        address: where it listens, in its own form: over TCP a numeric address, even if it was called by a host name.
        incarnation: the number of one opening of its endpoint, random over TCP; after a restart it is another one.
    """

    address: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Request:
    """A request, as its handler receives it.

    Args:
        sender: the party that sent it.
        topic: names the handler.
        note: any small value that msgpack can encode, as of `Message`; check it before use.
        blocks: the arrays, in the order sent.
    """

    sender: Party
    topic: str
    note: Any = None
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True)
class Response:
    """A handler's return value, and the result of `request`; the requester receives `blocks` as `Block`s, in order."""

    blocks: Sequence[Any] = ()
    note: Any = None


class Rejected(TransportError):
    """The request was understood and is refused; raised by a handler, and again at the sender.

    Args:
        reason: a word or short phrase that programs compare ("stale", "busy", …).
        facts: small numbers and strings with the details.
    """

    def __init__(self, reason: str, **facts: Any):
        details = ", ".join(f"{name}: {value}" for name, value in facts.items())
        super().__init__(f"{reason} ({details})" if details else reason)
        self.reason, self.facts = reason, facts


class Unreachable(TransportError):
    """No response will come: no process listens there, the connection broke, or this end closed.

    Whether the request was carried out is unknown, unless `sent` is False.

    Args:
        wrong_key: whether the two ends hold different keys; a retry cannot succeed.
        silent: whether a process that listens there did not reply to the handshake in time; a retry may succeed.
    """

    def __init__(self, address: str, reason: str, sent: bool = True, *, wrong_key: bool = False, silent: bool = False):
        super().__init__(f"{address} cannot be reached: {reason}")
        self.address, self.reason, self.sent = address, reason, sent
        self.wrong_key, self.silent = wrong_key, silent


Handler = Callable[[Request], Awaitable[Response]]


class Endpoint(ABC):
    """One party's end. Every coroutine runs on the event loop that opened it.

    Attributes:
        address: the address for requests to this party, with its real port (never 0).
        incarnation: the number of this opening.
        invalid_input: count of invalid input and callers not admitted, by reason; each ended its connection only.
        rejected_requests: count of requests rejected here, by reason.
        bytes_sent, bytes_received: payload so far.
    """

    address: str
    incarnation: int
    invalid_input: Counter[str]
    rejected_requests: Counter[str]
    bytes_sent: int = 0
    bytes_received: int = 0

    @abstractmethod
    async def request(self, address: str, topic: str, *arrays: Any, note: Any = None) -> Response:
        """Send a request to the party at an address, connecting first if necessary, and wait for its response.

        There is no time-out. Requests of one topic to one party are delivered in the order sent and may be answered in
        any order; a large request does not delay those of other topics. When this returns or raises, the caller may
        reuse the arrays' memory.

        Raises:
            Rejected: raised by the party's handler; or by its endpoint: "unknown topic", "too large", "busy", or
                "failed" with the handler's error. "too large" also if there is no memory here for the response.
            Unreachable: no response will come; raised at once when the connection breaks.
            WireError: the note or an array has no wire form.
        Cancelled: the other endpoint receives a cancellation and cancels the handler; the request may have been carried
            out. When the connection breaks, the other endpoint also cancels the handler.
        """

    @abstractmethod
    def activity_with(self, address: str) -> float:
        """A number that changes while bytes move to the party at an address, or from it; it stays while they wait."""

    @abstractmethod
    def handle(self, topic: str, handler: Handler, max_bytes: int = 0, max_waiting: int = 1024) -> None:
        """Register the handler of a topic. Each request runs in its own task, a child of the endpoint.

        A handler that raises any error except `Rejected` and `TransportError` fails the endpoint: see `failed`.

        Args:
            handler: must not change the arrays of its response afterwards: they are sent without a copy.
            max_bytes: more bytes of arrays are refused ("too large") before memory is allocated.
            max_waiting: requests that may be here at once from one connection; more are refused ("busy").
        """

    @abstractmethod
    def add_lost_callback(self, callback: Callable[[Party], None]) -> Callable[[], object]:
        """Call `callback` when the last connection with a party breaks or is closed, even if the party opened it.

        Two parties that connect to each other at the same moment have two connections. A callback that raises fails
        the endpoint (see `failed`), which continues to work.

        Returns: removes the callback.
        """

    @property
    @abstractmethod
    def failed(self) -> "asyncio.Future[None]":
        """A future for the owner to await: raises the first error of a handler, a callback or the acceptor.

        It is never done otherwise.
        """

    @abstractmethod
    async def close(self) -> None:
        """Stop serving, cancel the handlers, and close all connections. Idempotent."""

    async def __aenter__(self) -> "Endpoint":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
