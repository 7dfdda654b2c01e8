"""The prefetcher: it receives the messages that a program needs next, a little before their turn.

A big message stays at its sender until it is asked for, so asking only when the verb is reached would put every
transfer on the critical path; asking for all of them at once would hold a whole step's activations. This asks for the
next few.
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
    """What comes next in one worker's step.

    Args:
        actor: whose mailbox it is.
        expected: origins in the order the program needs them; empty where that is not known beforehand.
        ahead: how many to ask for before their turn: peak extra memory is this many messages.
        receive: takes one from the mailbox; the actor's own where nothing else is said.
    """

    def __init__(self, actor: Actor, expected: Iterable[Origin] = (), ahead: int = 2, receive: Receive | None = None):
        self._actor, self._expected, self._ahead = actor, deque(expected), ahead
        self._receive = receive or actor.receive
        self._asked: dict[Origin, asyncio.Task[Message]] = {}
        self._ask()

    def expect(self, origins: Iterable[Origin]) -> None:
        """Say what will be needed after what was expected before."""
        self._expected.extend(origins)
        self._ask()

    async def take(self, peer: int, key: tuple[int | str, ...]) -> Message:
        """The message with this address; waits for it if need be. It may come before its turn."""
        origin = peer, key
        if origin in self._asked:
            message = await self._asked.pop(origin)
            self._ask()
            return message
        if origin in self._expected:
            self._expected.remove(origin)
        return await self._receive(peer, key)

    def here(self, peer: int, key: tuple[int | str, ...]) -> bool:
        """Whether `take` would return at once; no for what has not been asked for yet. It takes nothing."""
        asked = self._asked.get((peer, key))
        return asked is not None and asked.done()

    async def within(self, seconds: float, peer: int, key: tuple[int | str, ...]) -> bool:
        """Whether `here` before so many seconds have passed."""
        if (peer, key) in self._asked:
            await asyncio.wait([self._asked[peer, key]], timeout=seconds)
        return self.here(peer, key)

    def asked(self, peer: int, key: tuple[int | str, ...]) -> "asyncio.Task[Message]":
        """The wait for a message among the next `ahead`; a caller that gives it up must not cancel it."""
        return self._asked[peer, key]

    def _ask(self) -> None:
        while self._expected and len(self._asked) < self._ahead:
            peer, key = self._expected.popleft()
            self._asked[peer, key] = self._actor.start(self._receive(peer, key))
