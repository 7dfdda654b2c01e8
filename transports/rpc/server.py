"""The server side: the handlers of an endpoint by topic, and the requests received on one connection.

    admitted        handled, when complete       replied              sent
    |--- a slot and memory for all of it ----|--- a slot ---|        one reply each; none if the sender cancelled

A request keeps its slot until its reply is sent, so that a sender that does not read cannot fill this end's memory.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from transports.errors import TransportError, WireError
from transports.rpc.base import Handler, Party, Rejected, Request, Response
from transports.rpc.frames import FrameSink, RpcKind
from transports.rpc.reasons import BUSY, FAILED, TOO_LARGE, UNKNOWN_TOPIC, count_reason
from transports.stream.incoming import message_memory
from transports.wire.arrays import Block
from transports.wire.frames import Header

MAX_BYTES_IN_FLIGHT = 1 << 30  # of one connection's messages in the memory of this endpoint
NAMED_TOPICS = 16
NAME_CHARACTERS, ERROR_CHARACTERS = 64, 1024


@dataclass(frozen=True, slots=True)
class TopicHandler:
    """A topic and its limits, as given to `Endpoint.handle`."""

    name: str
    handler: Handler
    max_bytes: int
    max_waiting: int


class Handlers:
    """The handlers of one endpoint, and their tasks.

    Every handler runs in its own task, which has ended before `close` returns. A handler that raises any error except
    `Rejected` and `TransportError` fails the endpoint.

    Args:
        max_in_flight: bytes of messages that one connection may have in this endpoint's memory, headers included.

    Attributes:
        failed, rejected_requests: as for `Endpoint`.
    """

    def __init__(self, max_in_flight: int = MAX_BYTES_IN_FLIGHT):
        self.max_in_flight = max_in_flight
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.rejected_requests: Counter[str] = Counter()
        self._topics: dict[str, TopicHandler] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}  # a dict keeps their order, so runs are reproducible

    def handle(self, topic: str, handler: Handler, max_bytes: int, max_waiting: int) -> None:
        self._topics[topic] = TopicHandler(topic, handler, max_bytes, max_waiting)

    def find(self, name: str) -> TopicHandler:
        """The topic of this name.

        Raises:
            Rejected: there is no handler for it.
        """
        try:
            return self._topics[name]
        except KeyError:
            topics = ", ".join(sorted(self._topics)[:NAMED_TOPICS])
            raise Rejected(UNKNOWN_TOPIC, topic=name[:NAME_CHARACTERS], known=topics) from None

    def start(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a task that handles a request."""
        task = asyncio.create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._on_done)
        return task

    def fail(self, error: BaseException) -> None:
        """Fail the endpoint with the error of a handler, a callback or the acceptor; the first error stays."""
        if not self.failed.done():
            self.failed.set_exception(error)

    async def close(self) -> None:
        """Cancel all handlers and wait until they have ended, except a handler that calls this itself."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)


@dataclass(slots=True)
class _Slot:
    """The slot of a request that is being received, handled or answered.

    Args:
        memory_bytes: bytes of memory reserved for it.
    """

    topic: TopicHandler
    memory_bytes: int
    task: "asyncio.Task[None] | None" = None
    replied: bool = False


@dataclass(slots=True)
class MemoryBudget:
    """Bytes of one connection's messages in its endpoint's memory, while they are received or handled."""

    limit: int
    used_bytes: int = 0

    def fits(self, nbytes: int) -> bool:
        """Whether this many more bytes stay within the limit."""
        return self.used_bytes + nbytes <= self.limit


class RpcServer:
    """The requests in flight, by number."""

    def __init__(self, handlers: Handlers, sink: FrameSink, budget: MemoryBudget):
        self._handlers, self._sink, self._budget = handlers, sink, budget
        self._slots: dict[int, _Slot] = {}
        self._waiting: Counter[str] = Counter()
        self._last_numbers: dict[str, int] = {}

    def begin_request(self, number: int, name: str, header: Header) -> bool:
        """Reserve a slot and memory for a request, or send a rejection. Returns whether it is accepted.

        Raises:
            WireError: a request with this number was received before.
        """
        memory_bytes = message_memory(header)
        try:
            topic = self._handlers.find(name)
            self._check_new(number, name)
            self._check_room(topic, header.nbytes, memory_bytes)
        except Rejected as rejection:
            self._reject(number, rejection)
            return False
        self._slots[number] = _Slot(topic, memory_bytes)
        self._waiting[name] += 1
        self._budget.used_bytes += memory_bytes
        return True

    def start_handler(self, number: int, sender: Party, header: Header, blocks: tuple[Block, ...]) -> None:
        """An admitted request is complete: start its handler, unless its sender has cancelled it."""
        if (slot := self._slots.get(number)) is not None:
            request = Request(sender, slot.topic.name, header.note, blocks)
            slot.task = self._handlers.start(self._run_handler(number, slot, request))

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
            self._budget.used_bytes -= slot.memory_bytes

    def end(self) -> None:
        """The connection has ended: cancel all requests."""
        for number in list(self._slots):
            self.cancel(number)

    def _check_new(self, number: int, name: str) -> None:
        """Raise if the number is not new. Requests of different topics may overtake each other, so count by topic."""
        last_number = self._last_numbers.get(name, -1)
        if number <= last_number or number in self._slots:
            raise WireError(f"a repeated request number (number: {number}, last of {name!r}: {last_number})")
        self._last_numbers[name] = number

    def _check_room(self, topic: TopicHandler, nbytes: int, memory_bytes: int) -> None:
        waiting = self._waiting[topic.name]
        budget = self._budget
        if nbytes > topic.max_bytes:
            raise Rejected(TOO_LARGE, topic=topic.name, bytes=nbytes, limit=topic.max_bytes)
        if waiting >= topic.max_waiting:
            raise Rejected(BUSY, topic=topic.name, waiting=waiting, limit=topic.max_waiting)
        if not budget.fits(memory_bytes):
            raise Rejected(BUSY, topic=topic.name, bytes=budget.used_bytes + memory_bytes, limit=budget.limit)

    async def _run_handler(self, number: int, slot: _Slot, request: Request) -> None:
        """Run the handler and send exactly one reply: its response, or a rejection if it fails or is cancelled."""
        rejection = Rejected(FAILED, error="the handler was cancelled")
        try:
            self._reply(number, await slot.topic.handler(request))
        except Rejected as rejected:
            rejection = rejected
        except TransportError as error:
            rejection = Rejected(FAILED, error=str(error)[:ERROR_CHARACTERS])
        except Exception as error:
            rejection = Rejected(FAILED, error=type(error).__name__)
            self._handlers.fail(error)
        finally:
            if number in self._slots and not slot.replied:
                self.release(number)
                self._reject(number, rejection)

    def _reply(self, number: int, response: Response) -> None:
        """Send the response if the sender still waits, and free the memory of the request."""
        if (slot := self._slots.get(number)) is not None:
            self._budget.used_bytes, slot.memory_bytes = self._budget.used_bytes - slot.memory_bytes, 0
            blocks = [Block.of(array) for array in response.blocks]
            self._sink.send(RpcKind.RESPONSE, (number,), blocks, response.note, partial(self.release, number))
            slot.replied = True

    def _reject(self, number: int, rejection: Rejected) -> None:
        count_reason(self._handlers.rejected_requests, rejection.reason)
        try:
            self._sink.send(RpcKind.REJECTED, (number, rejection.reason), note=rejection.facts)
        except WireError as error:
            self._sink.send(RpcKind.REJECTED, (number, FAILED), note={"error": str(error)[:ERROR_CHARACTERS]})
