"""Bare buffers over TCP: matches the buffers of a channel with the receives posted on it. No I/O.

On one channel the next buffer goes to the receive that has waited longest; a buffer that a cancelled receive returns
takes its old place in the order. At any time either buffers or receives wait on a channel, never both. This is the
inner loop of the collectives, so it does as little as possible.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count

import numpy as np


class Unfit(ValueError):
    """The next buffer has another size than the receiver's memory. Sizes in bytes."""

    def __init__(self, expected: int, came: int):
        super().__init__(f"the buffer does not fit (expected: {expected} bytes, came: {came} bytes)")
        self.came = came


class BareBuffer:
    """One incoming buffer. Its memory is allocated at its first byte, unless a receive has provided memory before.

    Args:
        order: its place among the buffers of its lane.
        on_posted: called when the first receive for it is posted.

    Attributes:
        missing: bytes that have not come yet.
    """

    __slots__ = ("_error", "_lent", "_view", "_waiter", "missing", "nbytes", "on_posted", "order")

    def __init__(self, nbytes: int, order: int, on_posted: Callable[[], None] | None = None):
        self.nbytes = self.missing = nbytes
        self.order, self.on_posted = order, on_posted
        self._view: memoryview | None = None
        self._lent = False
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None

    def buffer(self) -> memoryview:
        """Memory for the next bytes."""
        if self._view is None:
            self._view = _fresh(self.nbytes)
        return self._view[self.nbytes - self.missing :]

    def advance(self, count: int) -> None:
        """Account for `count` bytes that were written to the front of `buffer`."""
        self.missing -= count
        if not self.missing:
            self._wake()

    def fail(self, error: Exception) -> None:
        """The rest will not come: fail the receive, and release its memory."""
        if self.missing:
            self._error, self._view, self._lent, self.on_posted = error, None, False, None
            self._wake()

    def attach(self, view: memoryview) -> None:
        """Receive into this memory, which must have the right size, from now on."""
        self._move(view)
        self._lent = True

    def detach(self) -> None:
        """Return the receiver's memory: move the buffer into new memory."""
        if self._lent:
            self._move(_fresh(self.nbytes))
            self._lent, self._waiter = False, None

    def whole(self, waiter: asyncio.Future[None]) -> None:
        """Resolve this future when the last byte has come, or when the buffer fails."""
        self._waiter = waiter
        if not self.missing or self._error is not None:
            self._wake()

    def _move(self, view: memoryview) -> None:
        here = self.nbytes - self.missing
        if here and self._view is not None:
            view[:here] = self._view[:here]
        self._view = view

    def _wake(self) -> None:
        if self._waiter is None or self._waiter.done():
            return
        if self._error is None:
            self._waiter.set_result(None)
        else:
            self._waiter.set_exception(self._error.with_traceback(None))


class _Post:
    """A posted receive: its memory, its future, and the buffer once one matches."""

    __slots__ = ("buffer", "future", "view")

    def __init__(self, view: memoryview):
        self.view = view
        self.buffer: BareBuffer | None = None
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def match(self, buffer: BareBuffer) -> bool:
        """Take the buffer if the sizes are equal; else fail the receive."""
        if self.view.nbytes != buffer.nbytes:
            self.future.set_exception(Unfit(self.view.nbytes, buffer.nbytes))
            return False
        self.buffer = buffer
        buffer.attach(self.view)
        buffer.whole(self.future)
        if (on_posted := buffer.on_posted) is not None:
            buffer.on_posted = None
            on_posted()
        return True


class Lane:
    """One channel from one peer."""

    __slots__ = ("_order", "arrived", "posted")

    def __init__(self) -> None:
        self.arrived: deque[BareBuffer] = deque()
        self.posted: deque[_Post] = deque()
        self._order = count()

    def arriving(self, nbytes: int, on_posted: Callable[[], None] | None = None) -> BareBuffer:
        """A buffer of this size has begun or is offered: match it with a posted receive, or keep it."""
        buffer = BareBuffer(nbytes, next(self._order), on_posted)
        self._place(buffer)
        return buffer

    def whole(self, view: memoryview) -> None:
        """Deliver a buffer of this rank to itself, by a copy."""
        own = memoryview(bytearray(view))
        buffer = BareBuffer(view.nbytes, next(self._order))
        buffer.attach(own)
        buffer.advance(view.nbytes)
        self._place(buffer)

    async def receive(self, view: memoryview, lost: Exception | None) -> None:
        """Fill the memory with the next buffer.

        Args:
            lost: the error if no more buffers will come; else None.
        Raises:
            Unfit: the buffer has another size; it stays available. Else the error of the buffer or of this lane.
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
        if post.future.done() and not post.future.cancelled():
            post.future.exception()  # else the loop would report an unread exception
        post.buffer.detach()
        self._place(post.buffer)

    def _place(self, buffer: BareBuffer) -> None:
        while self.posted:
            post = self.posted.popleft()
            if not post.future.done() and post.match(buffer):
                return
        place = len(self.arrived)
        while place and self.arrived[place - 1].order > buffer.order:
            place -= 1
        self.arrived.insert(place, buffer)


class BareBuffers:
    """All lanes of one end."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[int, int], Lane] = {}

    def lane(self, peer: int, channel: int) -> Lane:
        """The lane of this channel from this peer."""
        try:
            return self._lanes[peer, channel]
        except KeyError:
            return self._lanes.setdefault((peer, channel), Lane())

    def fail_peer(self, peer: int, error: Exception) -> None:
        """Fail the receives that wait for this peer; complete buffers stay available."""
        for lane in self._of(peer):
            lane.fail(error)

    def fail_all(self, error: Exception) -> None:
        """Fail all waiting receives."""
        for lane in self._lanes.values():
            lane.fail(error)

    def _of(self, peer: int) -> Iterator[Lane]:
        return (lane for (source, _), lane in self._lanes.items() if source == peer)


def _fresh(nbytes: int) -> memoryview:
    return memoryview(np.empty(nbytes, np.uint8))
