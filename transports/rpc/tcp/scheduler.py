"""The send scheduler: many requests share one connection in turns, so that a long one does not delay a short one.

    lane "forward"    [request 7, long] [request 9]      in the order of the requests
    lane of stream 3  [response 2, long]                 each long response by itself
                       | part | part | …                 a part of each lane in turn; a short frame goes at once

Order is kept inside a lane only. The part size adapts so that a part takes about 0.01 s to write: a slow connection has
short parts.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from transports.errors import TransportError
from transports.rpc.frames import RpcKind
from transports.stream.connection import Ending
from transports.stream.writer import CACHED_CHUNK, OutgoingFrame
from transports.wire.arrays import Block
from transports.wire.frames import NUMBERS, Key, encode_bare, encode_head
from transports.wire.number_pool import NumberPool

WHOLE_BODY_BYTES = 64 << 10  # the longest body sent inside its frame; a longer one is sent in parts
MIN_PART = 16 << 10
MAX_PART = CACHED_CHUNK
PART_S = 0.01
PARTS_AHEAD = 2  # parts queued in the writer, so that it is never idle
MAX_BYTES_PER_CALLBACK = 4 << 20  # bytes written before other tasks of the loop run
STREAMS = NUMBERS - 1  # 0: a body inside its frame


class Writer(Protocol):
    """Writes frames to the peer; `transports.stream.connection.FrameConnection` is one."""

    def write(self, views: Sequence[bytes | memoryview]) -> OutgoingFrame | None:
        """Write, and queue the rest. Returns None if nothing is left, else the frame to wait for."""

    def withdraw(self, frame: OutgoingFrame) -> bool:
        """Release a frame's memory. Returns True if no byte of the frame will be written."""

    def end(self, ending: Ending, error: Exception) -> None:
        """End the connection; see `FrameConnection`."""

    @property
    def bytes_moved(self) -> float:
        """A number that changes while bytes pass to the peer or from it."""


class QueuedFrame:
    """A frame that is not yet sent: whole if it is short, else a head and then parts of its body.

    Its views are the sender's memory until they are passed to the writer.

    Args:
        name: its kind and number, used to withdraw it.
        lane: the lane in which its order is kept.
        stream: the number of its parts; 0 if its body is inside its frame.
        on_sent: called when it has been sent.

    Attributes:
        started: whether any of it has been passed to the writer.
        writing: its frames that the writer has queued and not yet written, and whether each is its head.
    """

    __slots__ = ("_head", "_views", "lane", "name", "on_sent", "started", "stream", "writing")

    def __init__(
        self,
        *,
        name: tuple[RpcKind, int | str],
        lane: Hashable,
        head: bytes,
        views: Sequence[memoryview],
        stream: int,
        on_sent: Callable[[], None],
    ):
        self.name = name
        self.lane = lane
        self.stream = stream
        self.on_sent = on_sent
        self.started = False
        self.writing: dict[OutgoingFrame, bool] = {}
        self._head = head
        self._views = deque(views)

    @property
    def passed_on(self) -> bool:
        """Whether all of it has been passed to the writer."""
        return self.started and not self._views

    def part(self, max_bytes: int) -> list[bytes | memoryview]:
        """Its next frame: the head, with all of a short body; then parts of a long body, of up to `max_bytes`."""
        if not self.started:
            self.started = True
            return [self._head, *([] if self.stream else self._cut(WHOLE_BODY_BYTES))]
        views = self._cut(max_bytes)
        return [encode_bare(RpcKind.PART, self.stream, sum(map(len, views))), *views]

    def drop(self) -> None:
        """Release the memory that has not been passed to the writer."""
        self._views.clear()

    def _cut(self, max_bytes: int) -> list[memoryview]:
        pieces = []
        while self._views and max_bytes:
            view = self._views.popleft()
            if view.nbytes > max_bytes:
                self._views.appendleft(view[max_bytes:])
                view = view[:max_bytes]
            pieces.append(view)
            max_bytes -= view.nbytes
        return pieces


class SendScheduler:
    """The frames that one end of a connection has to send.

    Attributes:
        queued: the number of short frames that the writer has queued and not yet written.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._writer: Writer | None = None
        self._lanes: dict[Hashable, deque[QueuedFrame]] = {}
        self._order: deque[Hashable] = deque()
        self._items: dict[tuple[RpcKind, int | str], QueuedFrame] = {}
        self._streams = NumberPool("long bodies on one connection", STREAMS, first=1)
        self._writing = self.queued = 0
        self._part = MAX_PART

    def on_connected(self, writer: Writer) -> None:
        """The connection is established: send the queued frames first."""
        self._writer = writer
        self._write_parts()

    def end(self) -> None:
        """Write nothing more, and release all memory."""
        self._writer = None
        for container in (self._lanes, self._order, self._items):
            container.clear()

    def send(self, kind: RpcKind, key: Key, blocks: Sequence[Block], note: Any, on_sent: Callable[[], None]) -> None:
        """See `FrameSink.send`."""
        stream = self._streams.allocate() if sum([block.nbytes for block in blocks]) > WHOLE_BODY_BYTES else 0
        try:
            head = encode_head(kind, key, blocks, note, number=stream)
        except TransportError:
            self._streams.release(stream)
            raise
        views = [block.data for block in blocks if block.nbytes]
        lane = (kind, key[1] if kind is RpcKind.REQUEST else stream)
        if self._writer is not None and not stream and lane not in self._lanes:
            self._write_short(self._writer, [head, *views], on_sent)
        else:
            item = QueuedFrame(name=(kind, key[0]), lane=lane, head=head, views=views, stream=stream, on_sent=on_sent)
            self._enqueue(item)

    def withdraw(self, kind: RpcKind, number: int) -> None:
        """See `FrameSink.withdraw`."""
        item = self._items.pop((kind, number), None)
        writer = self._writer
        if item is None:
            return
        started = item.started
        cut_short = not item.passed_on
        item.drop()
        for frame, is_head in list(item.writing.items()):
            if writer is not None and writer.withdraw(frame):
                frame.resolve()
                started, cut_short = started and not is_head, True
        self._leave_lane(item)
        self._streams.release(item.stream)
        if started and cut_short and writer is not None:  # the receiver has its head, and knows its stream
            self._write_short(writer, [encode_bare(RpcKind.PART, item.stream, 0)], lambda: None)

    def _enqueue(self, item: QueuedFrame) -> None:
        self._items[item.name] = item
        if item.lane not in self._lanes:
            self._lanes[item.lane] = deque()
            self._order.append(item.lane)
        self._lanes[item.lane].append(item)
        self._write_parts()

    def _write_short(self, writer: Writer, views: Sequence[bytes | memoryview], on_sent: Callable[[], None]) -> None:
        """Write now. What the kernel does not accept at once is copied, so that the sender need not wait."""
        frame = writer.write(views)
        if frame is None:
            return on_sent()

        def on_written(future: asyncio.Future[None]) -> None:
            self.queued -= 1
            on_sent()

        self.queued += 1
        frame.copy_data()
        frame.written.add_done_callback(on_written)

    def _write_parts(self) -> None:
        """Write a part of each lane in turn, up to `PARTS_AHEAD` in the writer and `MAX_BYTES_PER_CALLBACK` in all."""
        budget = MAX_BYTES_PER_CALLBACK
        while self._order and self._writer is not None and self._writing < PARTS_AHEAD:
            if budget <= 0:
                self._loop.call_soon(self._write_parts)
                return
            item = self._lanes[self._order[0]][0]
            self._order.rotate(-1)
            budget -= self._write_part(self._writer, item)

    def _write_part(self, writer: Writer, item: QueuedFrame) -> int:
        """Pass the next part of this frame to the writer. Returns its bytes."""
        is_head = not item.started
        views = item.part(self._part)
        nbytes = sum(map(len, views))
        start = self._loop.time()
        if item.passed_on:
            self._leave_lane(item)
        frame = writer.write(views)
        if frame is None:
            self._on_part_written(item, nbytes, start)
            return nbytes

        def on_written(future: asyncio.Future[None]) -> None:
            self._writing -= 1
            del item.writing[frame]
            self._on_part_written(item, nbytes, start)
            self._write_parts()

        self._writing += 1
        item.writing[frame] = is_head
        frame.written.add_done_callback(on_written)
        return nbytes

    def _on_part_written(self, item: QueuedFrame, nbytes: int, start: float) -> None:
        """A part is written: adapt the part size, and call `on_sent` after the last part."""
        if nbytes > self._part:
            quick = self._loop.time() - start < PART_S
            self._part = min(2 * self._part, MAX_PART) if quick else max(self._part // 2, MIN_PART)
        if item.passed_on and not item.writing and self._items.get(item.name) is item:
            del self._items[item.name]
            self._streams.release(item.stream)
            item.on_sent()

    def _leave_lane(self, item: QueuedFrame) -> None:
        lane = self._lanes.get(item.lane)
        if lane is None or item not in lane:
            return
        lane.remove(item)
        if not lane:
            del self._lanes[item.lane]
            self._order.remove(item.lane)
