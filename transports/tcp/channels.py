"""Bare buffers over TCP: matches the buffers of a channel with the receives posted on it. No I/O.

On one channel the next buffer goes to the receive that has waited longest; a buffer that a cancelled receive returns
takes its old place in the order. At any time either buffers or receives wait on a channel, never both. This is the
inner loop of the collectives, so it does as little as possible.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count

from transports.stream.incoming import IncomingBuffer


class WrongSize(ValueError):
    """The next buffer has another size than the receiver's memory. Sizes in bytes."""

    def __init__(self, expected: int, came: int):
        super().__init__(f"the buffer does not fit (expected: {expected} bytes, came: {came} bytes)")
        self.came = came


class _Post:
    """A posted receive: its memory, its future, and the buffer once one matches."""

    __slots__ = ("buffer", "future", "views")

    def __init__(self, view: memoryview):
        self.views = (view,)
        self.buffer: IncomingBuffer | None = None
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def match(self, buffer: IncomingBuffer) -> bool:
        """Take the buffer if the sizes are equal; else fail the receive."""
        expected = self.views[0].nbytes
        if expected != buffer.nbytes:
            self.future.set_exception(WrongSize(expected, buffer.nbytes))
            return False
        self.buffer = buffer
        buffer.attach(self.views)
        buffer.whole(self.future)
        buffer.post()
        return True


class Channel:
    """One channel from one peer."""

    __slots__ = ("_order", "arrived", "posted")

    def __init__(self) -> None:
        self.arrived: deque[IncomingBuffer] = deque()
        self.posted: deque[_Post] = deque()
        self._order = count()

    def begin(self, nbytes: int, on_posted: Callable[[], None] | None = None) -> IncomingBuffer:
        """A buffer of this size has begun or is offered: match it with a posted receive, or keep it."""
        buffer = IncomingBuffer(nbytes, next(self._order), on_posted)
        self._match(buffer)
        return buffer

    def deliver(self, view: memoryview) -> None:
        """Deliver a buffer of this rank to itself, by a copy."""
        buffer = IncomingBuffer(view.nbytes, next(self._order))
        buffer.attach((memoryview(bytearray(view)),))
        buffer.advance(view.nbytes)
        self._match(buffer)

    async def receive(self, view: memoryview, lost: Exception | None) -> None:
        """Fill the memory with the next buffer.

        Args:
            lost: the error if no more buffers will come; else None.
        Raises:
            WrongSize: the buffer has another size; it stays available. Else the error of the buffer or of this channel.
        Cancelled: the buffer stays available, and the memory is not used again.
        """
        post = _Post(view)
        if not self.arrived:
            if lost is not None:
                raise lost.with_traceback(None)
            self.posted.append(post)
        elif not post.match(self.arrived[0]):
            return post.future.result()
        elif not self.arrived.popleft().missing:
            return post.future.result()
        try:
            await post.future
        except asyncio.CancelledError:
            self._withdraw(post)
            raise

    def fail(self, error: Exception) -> None:
        """Fail the receives that wait for a buffer: no more will come."""
        for post in self.posted:
            if not post.future.done():
                post.future.set_exception(error.with_traceback(None))
        self.posted.clear()

    def _withdraw(self, post: _Post) -> None:
        if post.buffer is None:
            if post in self.posted:
                self.posted.remove(post)
            return
        post.buffer.detach(post.views)
        self._match(post.buffer)

    def _match(self, buffer: IncomingBuffer) -> None:
        while self.posted:
            post = self.posted.popleft()
            if not post.future.done() and post.match(buffer):
                return
        place = len(self.arrived)
        while place and self.arrived[place - 1].order > buffer.order:
            place -= 1
        self.arrived.insert(place, buffer)


class ChannelTable:
    """All channels of one end."""

    def __init__(self) -> None:
        self._channels: dict[tuple[int, int], Channel] = {}

    def find(self, peer: int, channel: int) -> Channel:
        """The channel with this number from this peer."""
        try:
            return self._channels[peer, channel]
        except KeyError:
            return self._channels.setdefault((peer, channel), Channel())

    def fail_peer(self, peer: int, error: Exception) -> None:
        """Fail the receives that wait for this peer; complete buffers stay available."""
        for each in self._of(peer):
            each.fail(error)

    def fail_all(self, error: Exception) -> None:
        """Fail all waiting receives."""
        for each in self._channels.values():
            each.fail(error)

    def _of(self, peer: int) -> Iterator[Channel]:
        return (each for (source, _), each in self._channels.items() if source == peer)
