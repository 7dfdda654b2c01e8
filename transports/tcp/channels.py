"""Bare buffers over TCP: matches the buffers of a channel with the receives posted on it. No I/O.

On one channel the next buffer goes to the receive that has waited longest; one that a cancelled receive gives back
takes its old place in the order. At any moment either buffers wait on a channel or receives do. This is the inner loop
of the collectives, so it does as little as possible.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count

import numpy as np


class Unfit(ValueError):
    """The next buffer has another size than the memory that was lent for it. Sizes in bytes."""

    def __init__(self, expected: int, came: int):
        super().__init__(f"the buffer does not fit (expected: {expected} bytes, came: {came} bytes)")
        self.came = came


class BareBuffer:
    """One buffer on its way in; memory is taken only when the first byte needs it and no receive has lent any.

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
        """Where the next bytes belong."""
        if self._view is None:
            self._view = _fresh(self.nbytes)
        return self._view[self.nbytes - self.missing :]

    def advance(self, count: int) -> None:
        """Say that `count` bytes were put at the front of `buffer`."""
        self.missing -= count
        if not self.missing:
            self._wake()

    def fail(self, error: Exception) -> None:
        """The rest will not come: tell the receiver, and let go of its memory."""
        if self.missing:
            self._error, self._view, self._lent, self.on_posted = error, None, False, None
            self._wake()

    def attach(self, view: memoryview) -> None:
        """Receive into this memory, which has the right size, from now on."""
        self._move(view)
        self._lent = True

    def detach(self) -> None:
        """Give a receiver's memory back."""
        if self._lent:
            self._move(_fresh(self.nbytes))
            self._lent, self._waiter = False, None

    def whole(self, waiter: asyncio.Future[None]) -> None:
        """Have this future done when the last byte is here, or none will come."""
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
    """A receive that waits: its memory, whom to wake, and the buffer once there is one."""

    __slots__ = ("buffer", "future", "view")

    def __init__(self, view: memoryview):
        self.view = view
        self.buffer: BareBuffer | None = None
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def match(self, buffer: BareBuffer) -> bool:
        """Take the buffer if it fits."""
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
        """A buffer of this size has begun, or is offered: give it to a posted receive, or keep it."""
        buffer = BareBuffer(nbytes, next(self._order), on_posted)
        self._place(buffer)
        return buffer

    def whole(self, view: memoryview) -> None:
        """A buffer that needs no wire: keep a copy of it."""
        own = memoryview(bytearray(view))
        buffer = BareBuffer(view.nbytes, next(self._order))
        buffer.attach(own)
        buffer.advance(view.nbytes)
        self._place(buffer)

    async def receive(self, view: memoryview, lost: Exception | None) -> None:
        """Fill the memory with the next buffer.

        Args:
            lost: why no more will come, if that is so.
        Raises:
            Unfit: it has another size; it stays available. Else the error that it, or this lane, failed with.
        Cancelled: the buffer stays available, and the memory is not touched again.
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
        """Nothing more will come: fail the receives that wait for a buffer."""
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
            post.future.exception()  # read, as the loop reports errors that are never read
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
        """Nothing more will come from this peer; what came whole stays available."""
        for lane in self._of(peer):
            lane.fail(error)

    def fail_all(self, error: Exception) -> None:
        """Nothing more is to be received."""
        for lane in self._lanes.values():
            lane.fail(error)

    def _of(self, peer: int) -> Iterator[Lane]:
        return (lane for (source, _), lane in self._lanes.items() if source == peer)


def _fresh(nbytes: int) -> memoryview:
    return memoryview(np.empty(nbytes, np.uint8))
