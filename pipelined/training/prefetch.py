"""The prefetcher: it starts to receive the next few messages of a program before the program needs them.

A big message stays at its sender until the receiver requests it. A request only when the instruction runs would put
every transfer on the critical path; requests for all messages at once would need the memory of a step's activations.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from pipelined.actors.actor import Actor
from transports import Message

Origin = tuple[int, tuple[int | str, ...]]
"""The rank that sends a message, and the key of its address."""
Receive = Callable[[int, tuple[int | str, ...]], Coroutine[Any, Any, Message]]


class Prefetcher:
    """The next messages of one worker in one step.

    Args:
        actor: the actor with the mailbox.
        expected: origins in the order the program needs them; empty if the order is not known beforehand.
        ahead: messages to request before they are needed; also the peak extra memory, in messages.
        receive: takes a message from the mailbox; default: the actor's `receive`.
    """

    def __init__(self, actor: Actor, expected: Iterable[Origin] = (), ahead: int = 2, receive: Receive | None = None):
        self._actor, self._expected, self._ahead = actor, deque(expected), ahead
        self._receive = receive or actor.receive
        self._asked: dict[Origin, asyncio.Task[Message]] = {}
        self._ask()

    def expect(self, origins: Iterable[Origin]) -> None:
        """Append origins to the expected ones."""
        self._expected.extend(origins)
        self._ask()

    async def take(self, peer: int, key: tuple[int | str, ...]) -> Message:
        """The message with this address; waits for it if necessary. It may be taken out of the expected order."""
        origin = peer, key
        if origin in self._asked:
            message = await self._asked.pop(origin)
            self._ask()
            return message
        if origin in self._expected:
            self._expected.remove(origin)
        return await self._receive(peer, key)

    def here(self, peer: int, key: tuple[int | str, ...]) -> bool:
        """Whether `take` would return at once; False for a message not requested yet. Takes nothing."""
        asked = self._asked.get((peer, key))
        return asked is not None and asked.done()

    async def within(self, seconds: float, peer: int, key: tuple[int | str, ...]) -> bool:
        """Whether the message is `here` within this many seconds."""
        if (peer, key) in self._asked:
            await asyncio.wait([self._asked[peer, key]], timeout=seconds)
        return self.here(peer, key)

    def asked(self, peer: int, key: tuple[int | str, ...]) -> "asyncio.Task[Message]":
        """The task that receives a message; the caller must not cancel it."""
        return self._asked[peer, key]

    def _ask(self) -> None:
        while self._expected and len(self._asked) < self._ahead:
            peer, key = self._expected.popleft()
            self._asked[peer, key] = self._actor.start(self._receive(peer, key))
