"""The handlers of one endpoint by topic, and their tasks.

Every handler runs in its own task, which has ended before `close` returns. A handler that raises any error except
`Rejected` and `TransportError` fails the endpoint.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from transports.rpc.base import Handler, Rejected

MAX_IN_FLIGHT = 1 << 30
NAMED_TOPICS = 16
NAME_CHARACTERS = 64
REASONS = 64
"""Maximum number of reasons with their own count: a handler may pass on a reason from received text."""


@dataclass(frozen=True, slots=True)
class TopicHandler:
    """A topic and its limits, as given to `Endpoint.handle`."""

    name: str
    handler: Handler
    max_bytes: int
    max_waiting: int


class Handlers:
    """The handlers of one endpoint.

    Args:
        max_in_flight: bytes of messages that one connection may have in this endpoint's memory, headers included.

    Attributes:
        failed, rejected_requests: as for `Endpoint`.
    """

    def __init__(self, max_in_flight: int = MAX_IN_FLIGHT):
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
            known = ", ".join(sorted(self._topics)[:NAMED_TOPICS])
            raise Rejected("unknown topic", topic=name[:NAME_CHARACTERS], known=known) from None

    def start(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a task that handles a request."""
        task = asyncio.create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._on_done)
        return task

    def count(self, rejection: Rejected) -> None:
        """Count a rejected request by its reason."""
        reason = rejection.reason
        self.rejected_requests[
            reason if reason in self.rejected_requests or len(self.rejected_requests) < REASONS else "others"
        ] += 1

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
