"""The server side of a connection: the requests received, and their replies.

    admitted        begun, when complete         replied              sent
    |--- a slot and memory for all of it ----|--- a slot ---|        one reply each; none if the sender cancelled

A request keeps its slot until its reply is sent, so that a sender that does not read cannot fill this end's memory.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass
from functools import partial

from transports.errors import TransportError, WireError
from transports.rpc.base import Party, Rejected, Request, Response
from transports.rpc.frames import FrameSink, MemoryBudget, RpcKind
from transports.rpc.handlers import Handlers, TopicHandler
from transports.stream.incoming import kept_bytes
from transports.wire.arrays import Block
from transports.wire.frames import Header

ERROR_CHARACTERS = 1024


@dataclass(slots=True)
class _Slot:
    """The slot of a request that is being received, handled or answered.

    Args:
        kept: bytes of memory reserved for it.
    """

    topic: TopicHandler
    kept: int
    task: "asyncio.Task[None] | None" = None
    replied: bool = False


class RpcServer:
    """The requests in flight, by number."""

    def __init__(self, handlers: Handlers, sink: FrameSink, budget: MemoryBudget):
        self._handlers, self._sink, self._budget = handlers, sink, budget
        self._slots: dict[int, _Slot] = {}
        self._waiting: Counter[str] = Counter()
        self._last: dict[str, int] = {}
        self._ended = False

    def admits(self, number: int, name: str, header: Header) -> bool:
        """Whether to allocate memory for a request; if not, a rejection is sent.

        Raises:
            WireError: a request with this number was received before.
        """
        kept = kept_bytes(header)
        try:
            topic = self._handlers.find(name)
            self._check_new(number, name)
            self._check_room(topic, header.nbytes, kept)
        except Rejected as rejection:
            self._reject(number, rejection)
            return False
        self._slots[number] = _Slot(topic, kept)
        self._waiting[name] += 1
        self._budget.taken += kept
        return True

    def begin(self, number: int, sender: Party, header: Header, blocks: tuple[Block, ...]) -> None:
        """An admitted request is complete: start its handler, unless its sender has cancelled it."""
        if (slot := self._slots.get(number)) is not None:
            request = Request(sender, slot.topic.name, header.note, blocks)
            slot.task = self._handlers.start(self._work(number, slot, request))

    def cancel(self, number: int) -> None:
        """The sender no longer waits: cancel the handler, and withdraw the response."""
        slot = self._slots.get(number)
        self.release(number)
        if slot is not None and slot.task is not None and not slot.replied:
            slot.task.cancel()
        self._sink.withdraw(RpcKind.RESPONSE, number)

    def release(self, number: int) -> None:
        """Free the slot and memory of a request; does nothing if they are free already."""
        if (slot := self._slots.pop(number, None)) is not None:
            self._waiting[slot.topic.name] -= 1
            self._budget.taken -= slot.kept

    def end(self) -> None:
        """The connection has ended: cancel all requests."""
        self._ended = True
        for number in list(self._slots):
            self.cancel(number)

    def _check_new(self, number: int, name: str) -> None:
        """Raise if the number is not new. Requests of different topics may overtake each other, so count by topic."""
        last = self._last.get(name, -1)
        if number <= last or number in self._slots:
            raise WireError(f"a repeated request number (number: {number}, last of {name!r}: {last})")
        self._last[name] = number

    def _check_room(self, topic: TopicHandler, nbytes: int, kept: int) -> None:
        waiting, budget = self._waiting[topic.name], self._budget
        if nbytes > topic.max_bytes:
            raise Rejected("too large", topic=topic.name, bytes=nbytes, limit=topic.max_bytes)
        if waiting >= topic.max_waiting:
            raise Rejected("busy", topic=topic.name, waiting=waiting, limit=topic.max_waiting)
        if not budget.fits(kept):
            raise Rejected("busy", topic=topic.name, bytes=budget.taken + kept, limit=budget.limit)

    async def _work(self, number: int, slot: _Slot, request: Request) -> None:
        """Run the handler and send exactly one reply: its response, or a rejection if it fails or is cancelled."""
        rejection = Rejected("failed", error="the handler was cancelled")
        try:
            self._reply(number, await slot.topic.handler(request))
        except Rejected as rejected:
            rejection = rejected
        except TransportError as error:
            rejection = Rejected("failed", error=str(error)[:ERROR_CHARACTERS])
        except Exception as error:
            rejection = Rejected("failed", error=type(error).__name__)
            self._handlers.fail(error)
        finally:
            if number in self._slots and not slot.replied:
                self.release(number)
                self._reject(number, rejection)

    def _reply(self, number: int, response: Response) -> None:
        """Send the response if the sender still waits, and free the memory of the request."""
        if (slot := self._slots.get(number)) is not None:
            self._budget.taken, slot.kept = self._budget.taken - slot.kept, 0
            blocks = [Block.of(array) for array in response.blocks]
            self._sink.send(RpcKind.RESPONSE, (number,), blocks, response.note, partial(self.release, number))
            slot.replied = True

    def _reject(self, number: int, rejection: Rejected) -> None:
        self._handlers.count(rejection)
        if self._ended:
            return
        try:
            self._sink.send(RpcKind.REJECTED, (number, rejection.reason), note=rejection.facts)
        except WireError as error:
            self._sink.send(RpcKind.REJECTED, (number, "failed"), note={"error": str(error)[:ERROR_CHARACTERS]})
