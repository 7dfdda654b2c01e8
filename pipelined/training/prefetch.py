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

    Attributes:
        requests: by origin, the task that receives a message; the caller must not cancel it.
    """

    def __init__(self, actor: Actor, expected: Iterable[Origin] = (), ahead: int = 2, receive: Receive | None = None):
        self._actor, self._expected, self._ahead = actor, deque(expected), ahead
        self._receive = receive or actor.receive
        self.requests: dict[Origin, asyncio.Task[Message]] = {}
        self._request()

    def expect(self, origins: Iterable[Origin]) -> None:
        """Append origins to the expected ones."""
        self._expected.extend(origins)
        self._request()

    async def take(self, peer: int, key: tuple[int | str, ...]) -> Message:
        """The message with this address; waits for it if necessary. It may be taken out of the expected order."""
        origin = peer, key
        if origin in self.requests:
            message = await self.requests.pop(origin)
            self._request()
            return message
        if origin in self._expected:
            self._expected.remove(origin)
        return await self._receive(peer, key)

    def arrived(self, peer: int, key: tuple[int | str, ...]) -> bool:
        """Whether `take` would return at once; False for a message not requested yet. Takes nothing."""
        request = self.requests.get((peer, key))
        return request is not None and request.done()

    def _request(self) -> None:
        while self._expected and len(self.requests) < self._ahead:
            peer, key = self._expected.popleft()
            self.requests[peer, key] = self._actor.start(self._receive(peer, key))
