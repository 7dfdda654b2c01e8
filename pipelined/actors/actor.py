"""An actor: one rank with a mailbox, and the parent of all tasks that it starts.

`tell` starts sending a message and returns at once; `receive` takes one from the mailbox by its address. The first
failure of any task, or a cancellation from outside, cancels the others and is raised from the `async with` block. No
wait lasts for ever: when a peer fails or dies, the transport makes every wait raise.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

from transports import Key, Message, Nursery, Transport


class Actor:
    """A rank's mailbox and its tasks.

    ```
    async with Actor(transport) as actor:
        actor.tell(1, ("greeting", 7), tensor)
        message = await actor.receive(1, ("answer", 7))
    ```
    Leaving the block waits until every message is received or buffered; leaving it by an exception cancels the messages
    that are not sent yet.
    """

    def __init__(self, transport: Transport):
        self.transport = transport
        self._tasks = Nursery()

    @property
    def rank(self) -> int:
        return self.transport.rank

    async def __aenter__(self) -> "Actor":
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        await self._tasks.__aexit__(kind, error, trace)

    def tell(self, peer: int, key: Key, *arrays: Any, note: Any = None) -> "asyncio.Task[None]":
        """Start sending a message without waiting; its arrays must not change until the returned task is done."""
        return self.start(self.transport.send(peer, key, *arrays, note=note))

    async def receive(self, peer: int | None, key: Key) -> Message:
        """Take the message with this address; wait for it if it is not here yet."""
        return await self.transport.receive(peer, key)

    def start(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run a coroutine as a child of this actor."""
        return self._tasks.create_task(work)
