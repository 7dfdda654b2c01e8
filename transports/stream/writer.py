"""The writer: the queue of frames still to be written to one peer. No sockets; it calls a function that writes views.

A frame that has started is always finished, even if its sender is cancelled, so the stream never ends inside a frame.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from transports.aio.futures import resolve

PIECES = 64
CACHED_CHUNK = 256 << 10  # for frames that fit a core's cache: the peer reads one chunk while the next is written
LONG_BYTES = 1 << 20  # a longer frame fits no cache, and is written in steps as large as the kernel accepts


class OutgoingFrame:
    """A frame to be written: views of its sender's memory, and a future that is done when the memory is free.

    Args:
        chunk: maximum bytes of one write, unless the frame is longer than `LONG_BYTES`.
    """

    __slots__ = ("chunk", "started", "views", "written")

    def __init__(self, views: Sequence[bytes | memoryview], chunk: int):
        self.views = deque(memoryview(view) for view in views)
        self.written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.started = False
        nbytes = sum([view.nbytes for view in self.views])
        self.chunk = chunk if nbytes <= LONG_BYTES else nbytes

    def advance(self, count: int) -> None:
        """Account for the first `count` bytes, which are written."""
        self.started = self.started or count > 0
        while self.views and count >= self.views[0].nbytes:
            count -= self.views.popleft().nbytes
        if count:
            self.views[0] = self.views[0][count:]

    def front(self) -> list[memoryview]:
        """The views to write next: a chunk, or all that is left, at most `PIECES` views."""
        max_bytes = self.chunk
        views = list[memoryview]()
        for view in self.views:
            if not max_bytes or len(views) == PIECES:
                break
            views.append(view if view.nbytes <= max_bytes else view[:max_bytes])
            max_bytes -= views[-1].nbytes
        return views

    def copy_data(self) -> None:
        """Copy the rest, so that the sender may reuse its arrays."""
        self.views = deque(memoryview(bytes(view)) for view in self.views)

    def resolve(self, error: Exception | None = None) -> None:
        resolve(self.written, error)


class FrameQueue:
    """Frames in the order they were pushed.

    Args:
        write: writes the front of the given views and returns the bytes written; raises BlockingIOError for 0 bytes.
        chunk: maximum bytes of one call of `write`, except for long frames.
    """

    def __init__(self, write: Callable[[list[memoryview]], int], chunk: int = LONG_BYTES):
        self._write, self._chunk = write, chunk
        self._queue: deque[OutgoingFrame] = deque()

    def __bool__(self) -> bool:
        """Whether any frame is left to write."""
        return bool(self._queue)

    @property
    def nbytes(self) -> int:
        """Bytes still to be written."""
        return sum(view.nbytes for frame in self._queue for view in frame.views)

    def push(self, views: Sequence[bytes | memoryview]) -> OutgoingFrame:
        frame = OutgoingFrame(views, self._chunk)
        self._queue.append(frame)
        return frame

    def flush(self, max_bytes: int) -> int:
        """Write until nothing is left, the kernel accepts no more, or `max_bytes` are written. Returns the count."""
        total = 0
        while self._queue and total < max_bytes:
            frame = self._queue[0]
            try:
                count = self._write(frame.front())
            except BlockingIOError:
                break
            total += count
            frame.advance(count)
            if not frame.views:
                self._queue.popleft().resolve()
        return total

    def withdraw(self, frame: OutgoingFrame) -> bool:
        """The frame's sender was cancelled: remove it if it has not started, else finish it from a copy.

        Returns: whether it was removed.
        """
        if frame.started:
            frame.copy_data()
            return False
        if frame in self._queue:
            self._queue.remove(frame)
        return True

    def fail(self, error: Exception, *, started: bool) -> None:
        """Fail the queued frames; a frame that has started only if `started`."""
        started_frames = [] if started else [frame for frame in self._queue if frame.started]
        for frame in self._queue:
            if frame not in started_frames:
                frame.resolve(error)
        self._queue = deque(started_frames)
