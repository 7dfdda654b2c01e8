"""The real embedded directory with thousands of light members, in one process on the virtual clock.

The directory is the one that `apps.swarm coordinator` runs, journal included. A light member is the real client, view
and lease of a peer or a trainer without model, stage and transport: its questions reach the directory's handlers as the
bytes that a transport would carry. So CPU seconds are those of the directory's own code, without sockets.
"""

import asyncio
import time
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from pipelined.aio.clock import Clock, VirtualClock
from pipelined.membership.directory import EmbeddedDirectory, serve_directory
from pipelined.membership.directory.server.journal import NoDisk
from transports import Block
from transports.rpc import Endpoint, Handler, Party, Request, Response, Unreachable

T = TypeVar("T")
DELAY_S, WRITE_S = 1e-3, 2e-3
"""Seconds from a member to the directory or back, and of one write of the journal."""
FRAME_BYTES = 40
"""About what a frame takes beside the bytes of its message."""
AT = "light://directory"


class Cost:
    """What the directory has cost so far.

    Attributes:
        cpu_s: seconds of a core in the directory's handlers and tasks.
        messages: questions and answers, each counted once.
        sent, received: bytes, seen from the directory.
    """

    def __init__(self) -> None:
        self.cpu_s, self.messages, self.sent, self.received = 0.0, 0, 0, 0
        self._running = False

    def taken(self) -> dict[str, float]:
        """All of it, by name."""
        return {"cpu_s": self.cpu_s, "messages": self.messages, "bytes": self.sent + self.received}

    @types.coroutine
    def of(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Do a piece of the directory's work in the caller's task, and count the CPU time of each of its steps."""
        step, value = work.send, None
        while True:
            began, self._running = time.thread_time(), True
            try:
                awaited = step(value)
            except StopIteration as end:
                return end.value
            finally:
                self._running = False
                self.cpu_s += time.thread_time() - began
            try:
                step, value = work.send, (yield awaited)
            except BaseException as error:  # is the work's, which may be cancelled
                step, value = work.throw, error

    def watch_tasks(self) -> None:
        """Count the tasks, too, that the directory's steps create from now on."""

        async def counted(work: Coroutine[Any, Any, T]) -> T:
            return await self.of(work)

        def create(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> "asyncio.Task[Any]":
            running, self._running = self._running, False
            try:
                counts = running and asyncio.iscoroutine(work)
                return asyncio.Task(counted(work) if counts else work, loop=loop, **options)
            finally:
                self._running = running

        asyncio.get_running_loop().set_task_factory(create)


class _Light(Endpoint):
    """One end: handlers and listeners, and no transport."""

    def __init__(self, address: str, incarnation: int):
        self.address, self.incarnation, self.failure = address, incarnation, None
        self.handlers, self.listeners = dict[str, Handler](), list[Callable[[Party], None]]()
        self.asking = set["asyncio.Task[Any]"]()

    @property
    def party(self) -> Party:
        return Party(self.address, self.incarnation)

    @property
    def failed(self) -> "asyncio.Future[None]":
        raise NotImplementedError

    def handle(self, topic: str, handler: Handler, max_bytes: int = 0, max_waiting: int = 1024) -> None:
        self.handlers[topic] = handler

    def activity_with(self, address: str) -> float:
        return 0.0

    def add_lost_callback(self, hear: Callable[[Party], None]) -> Callable[[], object]:
        self.listeners.append(hear)
        return lambda: self.listeners.remove(hear)

    async def close(self) -> None:
        """Nothing is held."""


class DirectoryEnd(_Light):
    """The directory's end, and the network to it."""

    def __init__(self, clock: Clock):
        super().__init__(AT, 1)
        self.cost, self.clock, self.members = Cost(), clock, dict[str, MemberEnd]()

    async def request(self, address: str, topic: str, *arrays: Any, note: Any = None) -> Response:
        """Whether a member lives."""
        await self.clock.sleep(2 * DELAY_S)
        self.cost.messages += 2
        if address not in self.members:
            raise Unreachable(address, "it died")
        return await self.members[address].handlers[topic](Request(self.party, topic))

    async def hear(self, asker: Party, topic: str, packed: bytes) -> Response:
        """A member's question arrives; what it is answered."""
        if topic not in self.handlers:
            raise Unreachable(AT, "it begins later")
        cost = self.cost
        cost.messages, cost.received = cost.messages + 1, cost.received + len(packed) + FRAME_BYTES
        response = await cost.of(self.handlers[topic](Request(asker, topic, None, (Block.of(packed),))))
        reply = response.blocks[0]
        cost.messages, cost.sent = cost.messages + 1, cost.sent + len(reply) + FRAME_BYTES
        return Response((Block.of(reply),))

    async def serve(self) -> None:
        """Be the directory until cancelled."""
        self.cost.watch_tasks()
        await self.cost.of(serve_directory(self, self.clock, _SlowDisk(self.clock)))


class MemberEnd(_Light):
    """A member's end: it reaches the directory alone."""

    def __init__(self, directory: DirectoryEnd, name: str, number: int):
        super().__init__(f"light://{name}", number)
        self._directory = directory
        directory.members[self.address] = self

    def client(self, patience: float) -> EmbeddedDirectory:
        """The directory as this member reaches it."""
        return EmbeddedDirectory(self, AT, self._directory.clock, patience)

    async def request(self, address: str, topic: str, *arrays: Any, note: Any = None) -> Response:
        """A question to the directory, with the delay of the network both ways."""
        await self._directory.clock.sleep(DELAY_S)
        response = await self._directory.hear(self.party, topic, arrays[0])
        await self._directory.clock.sleep(DELAY_S)
        return response

    def die(self) -> None:
        """The process is killed: the directory sees that its connection broke."""
        del self._directory.members[self.address]
        for hear in self._directory.listeners:
            hear(self.party)


class _SlowDisk(NoDisk):
    """Takes its time for each write, and keeps nothing."""

    def __init__(self, clock: Clock):
        self._clock = clock

    async def append(self, data: bytes) -> None:
        await self._clock.sleep(WRITE_S)

    async def replace(self, make: Callable[[], bytes]) -> int:
        size = len(make())
        await self._clock.sleep(WRITE_S)
        return size


def new_directory() -> DirectoryEnd:
    """A directory that is not served yet, on the virtual clock."""
    return DirectoryEnd(VirtualClock())
