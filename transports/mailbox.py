"""The mailbox matches unexpected arrivals with posted receives, by peer and key.

An arrival is either kept here or taken by one receive; a receive that fails or is cancelled returns it to its old place
in the order. An arrival's item is opaque: a whole message, or a handle with which the receiver fetches a message that
its sender still holds. No I/O. Cost: O(1), except `arrivals`, `drop` and cancelling one of several receives with the
same peer and key.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from transports.wire.frames import Key

Item = TypeVar("Item")
Accepted = TypeVar("Accepted", contravariant=True)


class Arrival(NamedTuple, Generic[Item]):
    """An item with its envelope, as MPI calls peer and key, and its place in the order of arrival."""

    peer: int
    key: Key
    order: int
    item: Item


class Destination(Protocol[Accepted]):
    """Where the item of a match goes, before the receive returns: a `ReceiveMemory` over sockets."""

    def accept(self, item: Accepted) -> None:
        """Take the matched item; a ValueError is raised in the receiver, and the item stays available."""


class _Receive:
    """A posted receive: its place in the order, its destination, and the future to resolve."""

    __slots__ = ("destination", "future", "order")

    def __init__(self, order: int, destination: Destination[Any] | None):
        self.order, self.destination = order, destination
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class Mailbox(Generic[Item]):
    """Matches arrivals and receives by (peer, key), in FIFO order on both sides. A key may be a list.

    Args:
        world_size: ranks in the world, including this one; when all others are gone, receives from any peer fail.
    """

    def __init__(self, world_size: int):
        self._world_size = world_size
        self._order = count()
        self._arrived: dict[Key, dict[int, deque[Arrival[Item]]]] = {}
        self._waiting: dict[tuple[int | None, Key], deque[_Receive]] = {}
        self._last_keys: dict[int, Key] = {}
        self._peer_errors: dict[int, Exception] = {}
        self._failure: Exception | None = None

    def put(self, peer: int, key: Key, item: Item) -> None:
        """Give the item to the matching receive that has waited longest, or keep it."""
        self._last_keys[peer] = key = tuple(key)
        self.put_back(Arrival(peer, key, next(self._order), item))

    def put_back(self, arrival: Arrival[Item]) -> None:
        """Undo a `take`: the arrival goes to the next matching receive, or back to its old place in the order."""
        while (receive := self._next_receive(arrival.peer, arrival.key)) is not None:
            try:
                if receive.destination is not None:
                    receive.destination.accept(arrival.item)
            except ValueError as error:
                receive.future.set_exception(error)
            else:
                receive.future.set_result(arrival)
                return
        self._keep(arrival)

    async def take(self, peer: int | None, key: Key, destination: Destination[Item] | None = None) -> Arrival[Item]:
        """Take the oldest arrival with this key from this peer; wait for it if necessary.

        With peer None, the peers take turns, each in its own order.

        Args:
            destination: accepts the item at the match (inside `put` for a receive that waited), so that a transport
                can read the bytes directly into the receiver's memory.
        Raises:
            The error given to `fail_all`; or, if no matching arrival is left, the one given to `fail_peer`.
        Cancelled: an arrival not yet matched is untouched; a matched one is put back, even an accepted one.
        """
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        key = tuple(key)
        arrival = self._pop(peer, key)
        if arrival is not None:
            try:
                if destination is not None:
                    destination.accept(arrival.item)
            except ValueError:
                self._keep(arrival)
                raise
            return arrival
        if (error := self._error_for(peer)) is not None:
            raise error.with_traceback(None)
        receive = _Receive(next(self._order), destination)
        self._queue(peer, key).append(receive)
        try:
            return await receive.future
        except asyncio.CancelledError:
            self._withdraw(peer, key, receive)
            raise

    def probe(self, peer: int | None, key: Key) -> bool:
        """Whether `take` would return at once; after `fail_all` it raises instead."""
        peers = self._arrived.get(tuple(key))
        return self._failure is None and peers is not None and (peer is None or peer in peers)

    def take_nowait(self, peer: int | None, key: Key) -> Arrival[Item] | None:
        """As `take`, without waiting; returns None where `take` would wait or raise."""
        return self._pop(peer, tuple(key)) if self._failure is None else None

    def fail_peer(self, peer: int, error: Exception) -> None:
        """Fail the receives that wait for this peer, now and later; its kept arrivals stay available."""
        self._peer_errors.setdefault(peer, error)
        envelopes = [envelope for envelope in self._waiting if self._error_for(envelope[0]) is not None]
        for envelope in envelopes:
            _fail(self._waiting.pop(envelope), error)

    def fail_all(self, error: Exception) -> None:
        """Fail every waiting and every later `take`; a second call does not replace the error."""
        if self._failure is None:
            self._failure = error
            for receives in self._waiting.values():
                _fail(receives, error)
            self._waiting.clear()

    def last_key(self, peer: int) -> Key | None:
        """The key of the last arrival from this peer."""
        return self._last_keys.get(peer)

    def arrivals(self, peer: int) -> Iterator[Arrival[Item]]:
        """The kept arrivals from this peer, in no particular order of keys."""
        for peers in self._arrived.values():
            yield from peers.get(peer, ())

    def drop(self, peer: int) -> list[Arrival[Item]]:
        """Remove the kept arrivals from this peer and return them."""
        dropped = list(self.arrivals(peer))
        for key in {arrival.key for arrival in dropped}:
            self._forget(peer, key)
        return dropped

    def _queue(self, peer: int | None, key: Key) -> deque[_Receive]:
        try:
            return self._waiting[peer, key]
        except KeyError:
            return self._waiting.setdefault((peer, key), deque())

    def _withdraw(self, peer: int | None, key: Key, receive: _Receive) -> None:
        future = receive.future
        if future.done() and not future.cancelled() and future.exception() is None:
            self.put_back(future.result())
            return
        receives = self._waiting.get((peer, key))
        if receives is not None and receive in receives:
            receives.remove(receive)
            self._drop_done((peer, key))

    def _next_receive(self, peer: int, key: Key) -> _Receive | None:
        """Pop the receive that has waited longest for this envelope, either from this peer or from any peer."""
        if not self._waiting:
            return None
        exact, anyone = self._drop_done((peer, key)), self._drop_done((None, key))
        receive = exact if anyone is None or (exact is not None and exact.order < anyone.order) else anyone
        if receive is not None:
            envelope = (peer if receive is exact else None, key)
            receives = self._waiting[envelope]
            receives.popleft()
            if not receives:
                del self._waiting[envelope]
        return receive

    def _drop_done(self, envelope: tuple[int | None, Key]) -> _Receive | None:
        """Drop done receives from the front of this queue; return the first that still waits, or None."""
        receives = self._waiting.get(envelope)
        if receives is None:
            return None
        while receives and receives[0].future.done():
            receives.popleft()
        if receives:
            return receives[0]
        del self._waiting[envelope]
        return None

    def _keep(self, arrival: Arrival[Item]) -> None:
        peers = self._arrived.get(arrival.key)
        if peers is None:
            self._arrived[arrival.key] = {arrival.peer: deque([arrival])}
            return
        queue = peers.setdefault(arrival.peer, deque())
        index = 0 if queue and queue[-1].order > arrival.order else len(queue)
        while index < len(queue) and queue[index].order < arrival.order:
            index += 1
        queue.insert(index, arrival)

    def _pop(self, peer: int | None, key: Key) -> Arrival[Item] | None:
        peers = self._arrived.get(key)
        if peers is None or (peer is not None and peer not in peers):
            return None
        source = next(iter(peers)) if peer is None else peer
        queue = peers[source]
        arrival = queue.popleft()
        self._forget(source, key)
        if queue:
            self._arrived.setdefault(key, {})[source] = queue  # at the end, so that peers take turns
        return arrival

    def _forget(self, peer: int, key: Key) -> None:
        peers = self._arrived[key]
        del peers[peer]
        if not peers:
            del self._arrived[key]

    def _error_for(self, peer: int | None) -> Exception | None:
        """The error for a receive from this peer (None: from any peer) if it can never match; else None."""
        if peer is not None:
            return self._peer_errors.get(peer)
        return next(iter(self._peer_errors.values())) if 0 < len(self._peer_errors) >= self._world_size - 1 else None


def _fail(receives: deque[_Receive], error: Exception) -> None:
    for receive in receives:
        if not receive.future.done():
            receive.future.set_exception(error)
