"""Frames out: the queue of what is still to be written to one peer. The one rule: a frame that has begun is finished.

So a stream never breaks off inside a frame, whatever becomes of the sender. Knows views and a function that writes
some of them; no sockets.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from transports.event_loop import settle

PIECES = 64
CACHED_CHUNK = 256 << 10  # of a frame that fits a core's cache; while one chunk is read there the next one is written
LONG_BYTES = 1 << 20  # a longer frame fits no cache, and is written in steps as large as the kernel takes


class Outgoing:
    """A frame to be written: views of its sender's memory, and whom to wake when they are free again.

    Args:
        chunk: the most to be written at once, unless the frame is a long one.
    """

    __slots__ = ("begun", "chunk", "views", "written")

    def __init__(self, views: Sequence[bytes | memoryview], chunk: int):
        self.views = deque(map(memoryview, views))
        self.written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.begun = False
        nbytes = sum([view.nbytes for view in self.views])
        self.chunk = chunk if nbytes <= LONG_BYTES else nbytes

    def advance(self, count: int) -> None:
        """Say that the first `count` bytes are written."""
        self.begun = self.begun or count > 0
        while self.views and count >= self.views[0].nbytes:
            count -= self.views.popleft().nbytes
        if count:
            self.views[0] = self.views[0][count:]

    def front(self) -> list[memoryview]:
        """What to write next: a chunk, or all that is left, but no more than `PIECES` views."""
        found, most = [], self.chunk
        for view in self.views:
            if not most or len(found) == PIECES:
                break
            found.append(view if view.nbytes <= most else view[:most])
            most -= found[-1].nbytes
        return found

    def detach(self) -> None:
        """Move the rest into memory of its own, so that the sender may have its arrays back."""
        self.views = deque(memoryview(bytes(view)) for view in self.views)

    def settle(self, error: Exception | None = None) -> None:
        settle(self.written, error)


class Outflow:
    """Frames in the order they were pushed.

    Args:
        write: writes the front of some views and returns how many bytes it took; raises BlockingIOError for none.
        chunk: bytes that it is given at once, but for long frames.
    """

    def __init__(self, write: Callable[[list[memoryview]], int], chunk: int = LONG_BYTES):
        self._write, self._chunk = write, chunk
        self._queue: deque[Outgoing] = deque()

    def __bool__(self) -> bool:
        """Whether anything is left to be written."""
        return bool(self._queue)

    @property
    def nbytes(self) -> int:
        """Bytes still to be written."""
        return sum(view.nbytes for frame in self._queue for view in frame.views)

    def push(self, views: Sequence[bytes | memoryview]) -> Outgoing:
        frame = Outgoing(views, self._chunk)
        self._queue.append(frame)
        return frame

    def flush(self, most: int) -> int:
        """Write until nothing is left, the other side is full, or `most` bytes are out; returns the bytes written."""
        total = 0
        while self._queue and total < most:
            frame = self._queue[0]
            try:
                count = self._write(frame.front())
            except BlockingIOError:
                break
            total += count
            frame.advance(count)
            if not frame.views:
                self._queue.popleft().settle()
        return total

    def withdraw(self, frame: Outgoing) -> bool:
        """Its sender was cancelled: forget a frame not begun, finish one begun from memory of its own.

        Returns: whether it was forgotten.
        """
        if frame.begun:
            frame.detach()
            return False
        if frame in self._queue:
            self._queue.remove(frame)
        return True

    def fail(self, error: Exception, *, begun: bool) -> None:
        """Fail what is queued; spare a frame already begun unless `begun`."""
        spared = [] if begun else [frame for frame in self._queue if frame.begun]
        for frame in self._queue:
            if frame not in spared:
                frame.settle(error)
        self._queue = deque(spared)
