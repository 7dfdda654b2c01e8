"""What all endpoints have in common: a desk, a circle of connections, and asking over them. The one rule: no I/O."""

import asyncio
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any

from transports.rpc.base import Answer, Endpoint, Handler, Party, Unreachable
from transports.rpc.connections import Circle, Connected
from transports.rpc.handlers import Desk
from transports.wire.arrays import Block


class CommonEndpoint(Endpoint):
    """One party's end, however its connections are made.

    Args:
        most_under_way: bytes of messages that one connection may have in this endpoint's memory, headers included.
    """

    def __init__(self, address: str, incarnation: int, most_under_way: int):
        self.address, self.incarnation = address, incarnation
        self.rejected: Counter[str] = Counter()
        self.closed = False
        self.desk = Desk(most_under_way)
        self.circle = Circle(self.desk.fail)
        self.refused = self.desk.refused

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address} incarnation {self.incarnation}>"

    async def ask(self, address: str, topic: str, *arrays: Any, note: Any = None) -> Answer:
        if self.closed:
            raise Unreachable(address, "this end is closed", sent=False)
        blocks = [Block.of(array) for array in arrays]
        connection = self.circle.towards(address)
        if connection is None:
            connection = self.call(address)
        return await connection.talk.ask(topic, blocks, note)

    @abstractmethod
    def call(self, address: str) -> Connected:
        """A connection that is being made; it has joined the circle, and what is asked over it waits there."""

    def answer(self, topic: str, handler: Handler, most_bytes: int = 0, most_waiting: int = 1024) -> None:
        self.desk.answer(topic, handler, most_bytes, most_waiting)

    def on_lost(self, hear: Callable[[Party], None]) -> None:
        self.circle.on_lost(hear)

    @property
    def failed(self) -> "asyncio.Future[None]":
        return self.desk.failed
