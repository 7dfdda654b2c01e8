"""The prefetcher: it starts to receive the next few messages of a program before the program needs them.

A big message stays at its sender until the receiver requests it. A request only when the instruction runs would put
every transfer on the critical path; requests for all messages at once would need the memory of a step's activations.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

from pipelined.actors.actor import Actor
from transports import Key, Message

Origin = tuple[int, Key]
"""The rank that sends a message, and the key of its address."""
Receive = Callable[[int, Key], Coroutine[Any, Any, Message]]


class MessageSource(Protocol):
    """Where a worker takes its messages from."""

    async def take(self, peer: int, key: Key) -> Message:
        """The message with this address; waits for it if necessary."""

    def arrived(self, peer: int, key: Key) -> bool:
        """Whether `take` would return at once; takes nothing."""

    def requested(self, peer: int, key: Key) -> "asyncio.Task[Message] | None":
        """The task that receives a message, if it was requested."""


REQUESTED = 2
"""Messages that a worker requests before it needs them; also the peak extra memory, in messages."""


class Prefetcher:
    """The next messages of one worker in one step.

    Args:
        actor: the actor with the mailbox.
        expected: origins in the order the program needs them; empty if the order is not known beforehand.
        receive: takes a message from the mailbox; default: the actor's `receive`.
    """

    def __init__(self, actor: Actor, expected: Iterable[Origin] = (), receive: Receive | None = None):
        self._actor = actor
        self._expected = deque(expected)
        self._receive = receive or actor.receive
        self._requests: dict[Origin, asyncio.Task[Message]] = {}
        self._request()

    def expect(self, origins: Iterable[Origin]) -> None:
        """Append origins to the expected ones."""
        self._expected.extend(origins)
        self._request()

    async def take(self, peer: int, key: Key) -> Message:
        """The message with this address; waits for it if necessary. It may be taken out of the expected order."""
        origin = peer, key
        if origin in self._requests:
            message = await self._requests.pop(origin)
            self._request()
            return message
        if origin in self._expected:
            self._expected.remove(origin)
        return await self._receive(peer, key)

    def arrived(self, peer: int, key: Key) -> bool:
        """Whether `take` would return at once; False for a message not requested yet. Takes nothing."""
        request = self._requests.get((peer, key))
        return request is not None and request.done()

    def requested(self, peer: int, key: Key) -> "asyncio.Task[Message] | None":
        """The task that receives a message, which the caller must not cancel; None for a message not requested yet."""
        return self._requests.get((peer, key))

    def _request(self) -> None:
        while self._expected and len(self._requests) < REQUESTED:
            peer, key = self._expected.popleft()
            self._requests[peer, key] = self._actor.start(self._receive(peer, key))


class MessageQueues:
    """The messages of a segment: those of each sender and kind in their order, with no order between any two.

    Args:
        receive: as for a `Prefetcher`.
    """

    def __init__(self, actor: Actor, receive: Receive):
        self._prefetchers = defaultdict[Origin, Prefetcher](lambda: Prefetcher(actor, receive=receive))

    def expect(self, origins: Iterable[Origin]) -> None:
        """Request further messages, in the order in which each kind will be taken."""
        for peer, key in origins:
            self._prefetchers[peer, key[:1]].expect([(peer, key)])

    async def take(self, peer: int, key: Key) -> Message:
        return await self._prefetchers[peer, key[:1]].take(peer, key)

    def arrived(self, peer: int, key: Key) -> bool:
        return self._prefetchers[peer, key[:1]].arrived(peer, key)

    def requested(self, peer: int, key: Key) -> "asyncio.Task[Message] | None":
        return self._prefetchers[peer, key[:1]].requested(peer, key)
