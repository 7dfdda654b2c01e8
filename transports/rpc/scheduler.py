"""Frames out, in turns: what many say at once shares one connection, and the long does not hold up the short.

    lane "forward"    [request 7, long] [request 9]      in order, for so they were asked
    lane of stream 3  [answer 2, long]                     each long answer by itself
                       | part | part | …                   a part of each lane in turn; what is short goes at once

The one rule: order is kept inside a lane, nowhere else. Parts are as long as takes a hundredth of a second to write, as
observed, so a slow connection has short ones. Knows something that writes; no sockets.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from transports.errors import TransportError
from transports.rpc.sink import nothing
from transports.tcp.writer import CACHED_CHUNK, Outgoing
from transports.wire.arrays import Block
from transports.wire.frames import Key, Kind, encode_bare, encode_head

SHORT_BYTES = 64 << 10  # a body that goes in its frame; a longer one goes in parts
LEAST_PART, MOST_PART = 16 << 10, CACHED_CHUNK
PART_S = 0.01
AHEAD = 2  # parts that the writer has, so that it never waits for one
TURN_BYTES = 4 << 20  # what is written before others on the loop have their turn
STREAMS = (1 << 16) - 1


class Writer(Protocol):
    """What puts frames on their way; `transports.tcp.connection.Link` is one."""

    def write(self, views: Sequence[bytes | memoryview]) -> Outgoing | None:
        """Write, and queue the rest; returns None where nothing is left, else the frame to wait for."""

    def withdraw(self, frame: Outgoing) -> bool:
        """Let go of a frame's memory; returns whether it will not be written at all."""


class Utterance:
    """A frame that is not sent yet: whole where it is short, else a head and then parts of its body.

    Its views are the sender's memory until they have been given to a writer.

    Args:
        name: its kind and number, by which it is withdrawn.
        lane: inside which its order is kept.
        stream: names its parts; 0 where its body goes in its frame.
        out: to be called when it is out.

    Attributes:
        begun: whether any of it has been given to the writer.
        writing: its frames that the writer has and has not written.
    """

    __slots__ = ("_head", "_views", "begun", "lane", "name", "out", "stream", "writing")

    def __init__(
        self,
        *,
        name: tuple[Kind, int],
        lane: Hashable,
        head: bytes,
        views: Sequence[memoryview],
        stream: int,
        out: Callable[[], None],
    ):
        self.name, self.lane, self.stream, self.out = name, lane, stream, out
        self.begun = False
        self.writing: dict[Outgoing, None] = {}
        self._head, self._views = head, deque(views)

    @property
    def given(self) -> bool:
        """Whether all of it has been given to the writer."""
        return self.begun and not self._views

    def part(self, most: int) -> list[bytes | memoryview]:
        """Its next frame: the first one, or up to so many bytes of its body behind the head of a part."""
        if not self.begun:
            self.begun = True
            return [self._head, *([] if self.stream else self._take(len(self._head) + most))]
        views = self._take(most)
        return [encode_bare(Kind.PART, self.stream, sum(map(len, views))), *views]

    def drop(self) -> None:
        """Let go of what has not been given."""
        self._views.clear()

    def _take(self, most: int) -> list[memoryview]:
        found = []
        while self._views and most:
            view = self._views.popleft()
            if view.nbytes > most:
                self._views.appendleft(view[most:])
                view = view[:most]
            found.append(view)
            most -= view.nbytes
        return found


class Turns:
    """All that one end of a connection has to say.

    Attributes:
        queued: short frames that the writer has and has not written.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._writer: Writer | None = None
        self._lanes: dict[Hashable, deque[Utterance]] = {}
        self._order: deque[Hashable] = deque()
        self._said: dict[tuple[Kind, int], Utterance] = {}
        self._streams: set[int] = set()
        self._last_stream = self._writing = self.queued = 0
        self._part = MOST_PART

    def begin(self, writer: Writer) -> None:
        """There is a connection now; what was said before goes first."""
        self._writer = writer
        self._go_on()

    def end(self) -> None:
        """Nothing is written any more, and nobody's memory kept."""
        self._writer = None
        for kept in (self._lanes, self._order, self._said):
            kept.clear()

    def say(self, kind: Kind, key: Key, blocks: Sequence[Block], note: Any, out: Callable[[], None]) -> None:
        """See `Line.say`."""
        stream = self._free_stream() if sum([block.nbytes for block in blocks]) > SHORT_BYTES else 0
        head = encode_head(kind, key, blocks, note, stream)
        views = [block.data for block in blocks if block.nbytes]
        lane = (kind, key[1] if kind is Kind.REQUEST else stream)
        if self._writer is not None and not stream and lane not in self._lanes:
            self._write_short([head, *views], out)
        else:
            said = Utterance(name=(kind, key[0]), lane=lane, head=head, views=views, stream=stream, out=out)
            self._enqueue(said)

    def withdraw(self, kind: Kind, number: int) -> None:
        """See `Line.withdraw`."""
        said = self._said.pop((kind, number), None)
        if said is None:
            return
        cut_short = said.begun and not said.given
        said.drop()
        for frame in list(said.writing):
            if self._writer.withdraw(frame):
                frame.settle()
                cut_short = True
        self._leave_lane(said)
        self._streams.discard(said.stream)
        if cut_short:
            self._write_short([encode_bare(Kind.PART, said.stream, 0)], nothing)

    def _enqueue(self, said: Utterance) -> None:
        self._said[said.name] = said
        if said.stream:
            self._streams.add(said.stream)
        if said.lane not in self._lanes:
            self._lanes[said.lane] = deque()
            self._order.append(said.lane)
        self._lanes[said.lane].append(said)
        self._go_on()

    def _write_short(self, views: Sequence[bytes | memoryview], out: Callable[[], None]) -> None:
        """Write now; what does not go at once is copied, so that nobody waits for its memory."""
        frame = self._writer.write(views)
        if frame is None:
            return out()

        def written(future: asyncio.Future[None]) -> None:
            self.queued -= 1
            out()

        self.queued += 1
        frame.detach()
        frame.written.add_done_callback(written)

    def _go_on(self) -> None:
        """Write a part of each lane in turn, until the writer has enough, or others have waited long enough."""
        left = TURN_BYTES
        while self._order and self._writer is not None and self._writing < AHEAD:
            if left <= 0:
                self._loop.call_soon(self._go_on)
                return
            said = self._lanes[self._order[0]][0]
            self._order.rotate(-1)
            left -= self._write_part(said)

    def _write_part(self, said: Utterance) -> int:
        """Give the writer a part of this; returns its bytes."""
        views = said.part(self._part)
        nbytes, began = sum(map(len, views)), self._loop.time()
        if said.given:
            self._leave_lane(said)
        frame = self._writer.write(views)
        if frame is None:
            self._written(said, nbytes, began)
            return nbytes

        def written(future: asyncio.Future[None]) -> None:
            self._writing -= 1
            del said.writing[frame]
            self._written(said, nbytes, began)
            self._go_on()

        self._writing += 1
        said.writing[frame] = None
        frame.written.add_done_callback(written)
        return nbytes

    def _written(self, said: Utterance, nbytes: int, began: float) -> None:
        """A part is out: learn from it, and say so if it was the last one."""
        if nbytes > self._part:
            quick = self._loop.time() - began < PART_S
            self._part = min(2 * self._part, MOST_PART) if quick else max(self._part // 2, LEAST_PART)
        if said.given and not said.writing and self._said.get(said.name) is said:
            del self._said[said.name]
            self._streams.discard(said.stream)
            said.out()

    def _leave_lane(self, said: Utterance) -> None:
        lane = self._lanes.get(said.lane, ())
        if said not in lane:
            return
        lane.remove(said)
        if not lane:
            del self._lanes[said.lane]
            self._order.remove(said.lane)

    def _free_stream(self) -> int:
        """A number that no long body bears now; the ones used last are used last again.

        Raises:
            TransportError: there is none.
        """
        if len(self._streams) == STREAMS:
            raise TransportError(f"too many long bodies wait for one connection ({STREAMS}); await some before more")
        while True:
            self._last_stream = self._last_stream % STREAMS + 1
            if self._last_stream not in self._streams:
                return self._last_stream
