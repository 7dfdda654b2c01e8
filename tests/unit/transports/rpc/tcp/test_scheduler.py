"""The next frame to send: order inside a lane, turns between lanes, and no frame of a cancelled send."""

import asyncio

import pytest

from tests.virtual_time import virtual_seconds
from transports import WireError
from transports.rpc.frames import KINDS
from transports.rpc.frames import RpcKind as Kind
from transports.rpc.tcp.reassembly import Reassembly
from transports.rpc.tcp.scheduler import MAX_PART, MIN_PART, WHOLE_BODY_BYTES, SendScheduler
from transports.stream.reader import FrameReader
from transports.stream.writer import LONG_BYTES, OutgoingFrame
from transports.wire.arrays import Block
from transports.wire.frames import PREAMBLE_BYTES, parse_header, parse_preamble

pytestmark = pytest.mark.virtual

LONG = 3 * MAX_PART


class Pen:
    """A writer that takes so many seconds for every frame, one after the other; 0 writes at once."""

    def __init__(self, seconds=0.0):
        self.seconds, self.frames, self.stream, self._free = seconds, [], b"", 0.0
        self.stream = b""

    def write(self, views):
        if not self.seconds:
            self._put(b"".join(views))
            return None
        loop = asyncio.get_running_loop()
        frame, self._free = OutgoingFrame(views, LONG_BYTES), max(self._free, loop.time()) + self.seconds
        loop.call_at(self._free, self._finish, frame)
        return frame

    def withdraw(self, frame):
        withdrawn = bool(frame.views)
        frame.views.clear()
        return withdrawn

    def _finish(self, frame):
        if frame.views:
            self._put(b"".join(frame.views))
            frame.views.clear()
            frame.resolve()

    def _put(self, data):
        self.stream += data
        preamble = parse_preamble(data, KINDS)
        header = parse_header(preamble, data[PREAMBLE_BYTES:][: preamble.header_bytes])
        self.frames.append(
            (preamble.kind.name, preamble.number, header.key, len(data) - PREAMBLE_BYTES - preamble.header_bytes)
        )

    @property
    def story(self):
        """The frames in a word each."""
        return [
            f"{kind[0]}{channel or ''}" if kind == "PART" else f"{kind}{key[0]}"
            for kind, channel, key, _ in self.frames
        ]


class Reader:
    """A session that accepts all; `frames` has what it receives: whole, or cut short."""

    def __init__(self, stream):
        self.frames = []
        reader, stream = FrameReader(KINDS, Reassembly(self, lambda nbytes: None)), memoryview(stream)
        while stream:
            buffer = reader.buffer()
            count = min(buffer.nbytes, len(stream))
            buffer[:count], stream = stream[:count], stream[count:]
            reader.advance(count)

    def begin_frame(self, kind, header):
        return True

    def receive(self, kind, header, blocks=()):
        self.frames.append((header.key[0], "whole"))

    def on_truncated(self, kind, header):
        self.frames.append((header.key[0], "cut short"))


def speaking(seconds=0.0):
    scheduler, pen = SendScheduler(), Pen(seconds)
    scheduler.on_connected(pen)
    return scheduler, pen


def ask(scheduler, number, nbytes, topic="t", out=lambda: None):
    scheduler.send(Kind.REQUEST, (number, topic), [Block.of(bytes(nbytes))], None, out)


async def test_a_short_body_goes_in_its_frame_and_a_long_one_in_parts():
    scheduler, pen = speaking()
    out = []
    ask(scheduler, 0, WHOLE_BODY_BYTES, out=lambda: out.append(0))
    ask(scheduler, 1, WHOLE_BODY_BYTES + 1, out=lambda: out.append(1))
    ask(scheduler, 2, LONG, out=lambda: out.append(2))
    assert pen.story[:4] == ["REQUEST0", "REQUEST1", "P1", "REQUEST2"] and set(pen.story[4:]) == {"P2"}
    assert sum(nbytes for kind, channel, _, nbytes in pen.frames if channel == 2) == LONG
    assert out == [0, 1, 2]


async def test_a_short_body_stays_in_its_frame_when_a_slow_connection_has_small_parts():
    """A part then has 16 KiB; a frame that is cut there would be followed by bytes that belong to no frame."""
    scheduler, pen = speaking(seconds=1.0)
    sent = asyncio.get_running_loop().create_future()
    ask(scheduler, 0, LONG)
    ask(scheduler, 1, WHOLE_BODY_BYTES, out=lambda: sent.set_result(None))
    await sent
    assert min(nbytes for kind, *_, nbytes in pen.frames if kind == "PART") == MIN_PART
    assert [nbytes for kind, _, key, nbytes in pen.frames if key == (1, "t")] == [WHOLE_BODY_BYTES]


async def test_lanes_take_turns_and_each_keeps_its_order():
    scheduler, pen = speaking(seconds=1e-4)
    ask(scheduler, 0, 8 * MAX_PART, "slow")
    ask(scheduler, 1, 8 * MAX_PART, "other")
    ask(scheduler, 2, 8, "slow")
    ask(scheduler, 3, 8, "quick")
    await virtual_seconds(1)
    assert [word for word in pen.story if word.startswith("REQUEST")] == [
        "REQUEST0",
        "REQUEST3",
        "REQUEST1",
        "REQUEST2",
    ]
    both = pen.story[pen.story.index("REQUEST1") + 1 :]
    assert both[:8] in (["P1", "P2"] * 4, ["P2", "P1"] * 4)
    last = max(place for place, word in enumerate(pen.story) if word == "P1")
    assert pen.story.index("REQUEST2") > last


@pytest.mark.parametrize(("seconds", "size"), [(1e-6, MAX_PART), (0.05, MIN_PART)])
async def test_parts_are_as_long_as_takes_a_hundredth_of_a_second(seconds, size):
    scheduler, pen = speaking(seconds)
    ask(scheduler, 0, 16 * MAX_PART)
    await virtual_seconds(seconds * 1000)
    sizes = [nbytes for kind, *_, nbytes in pen.frames if kind == "PART"]
    assert sizes[0] == MAX_PART and sizes[-2] == size


async def test_a_message_withdrawn_before_its_first_byte_is_not_sent():
    scheduler, pen = speaking(seconds=1e-4)
    ask(scheduler, 0, LONG)
    ask(scheduler, 1, LONG, out=lambda: pytest.fail("it was withdrawn"))
    ask(scheduler, 2, LONG)
    scheduler.withdraw(Kind.REQUEST, 1)
    scheduler.withdraw(Kind.REQUEST, 7)
    await virtual_seconds(1)
    assert [word for word in pen.story if word.startswith("REQUEST")] == ["REQUEST0", "REQUEST2"]
    assert ("PART", 2, (), 0) not in pen.frames


async def test_a_withdrawn_body_is_truncated_and_the_next_message_follows():
    scheduler, pen = speaking(seconds=0.01)
    out = []
    ask(scheduler, 0, LONG, out=lambda: out.append(0))
    ask(scheduler, 1, LONG, out=lambda: out.append(1))
    await virtual_seconds(0.025)
    scheduler.withdraw(Kind.REQUEST, 0)
    await virtual_seconds(1)
    mine = [nbytes for kind, channel, _, nbytes in pen.frames if kind == "PART" and channel == 1]
    assert mine[-1] == 0 and 0 < sum(mine) < LONG
    assert Reader(pen.stream).frames == [(0, "cut short"), (1, "whole")]
    assert sum(nbytes for _, channel, _, nbytes in pen.frames if channel == 2) == LONG
    assert out == [1]


@pytest.mark.parametrize(
    ("kind", "key", "nbytes"),
    [(Kind.REQUEST, (1, "other"), LONG), (Kind.REQUEST, (1, "slow"), 8), (Kind.RESPONSE, (1,), LONG)],
)
async def test_a_head_withdrawn_in_the_writer_is_followed_by_no_part(kind, key, nbytes):
    """Its receiver knows no such stream: a part of it is "a part of nothing", and ends the connection."""
    scheduler, pen = speaking(seconds=0.01)
    ask(scheduler, 0, LONG, "slow")
    scheduler.send(kind, key, [Block.of(bytes(nbytes))], None, lambda: pytest.fail("it was withdrawn"))
    while not scheduler._items[kind, 1].started:
        await virtual_seconds(0.001)
    scheduler.withdraw(kind, 1)
    ask(scheduler, 2, LONG, "other")
    await virtual_seconds(1)
    assert sorted(Reader(pen.stream).frames) == [(0, "whole"), (2, "whole")]
    assert min(nbytes for name, *_, nbytes in pen.frames if name == "PART") > 0


async def test_messages_queued_before_there_is_a_writer_are_sent_first():
    scheduler, pen = SendScheduler(), Pen()
    ask(scheduler, 0, LONG, "long")
    ask(scheduler, 1, 8)
    scheduler.withdraw(Kind.REQUEST, 1)
    ask(scheduler, 2, 8)
    scheduler.on_connected(pen)
    await asyncio.sleep(0)
    assert [word for word in pen.story if word.startswith("REQUEST")] == ["REQUEST0", "REQUEST2"]


async def test_a_message_that_cannot_be_packed_leaves_no_state():
    scheduler, pen = speaking()
    with pytest.raises(WireError):
        scheduler.send(Kind.REQUEST, (0, "t"), [Block.of(bytes(LONG))], object(), lambda: None)
    ask(scheduler, 1, LONG)
    await asyncio.sleep(0)
    assert pen.story[0] == "REQUEST1" and pen.frames[0][1] in (1, 2)


async def test_the_end_lets_go_of_everything():
    scheduler, pen = speaking(seconds=0.01)
    ask(scheduler, 0, LONG, out=lambda: pytest.fail("it never was out"))
    scheduler.end()
    scheduler.withdraw(Kind.REQUEST, 0)
    await virtual_seconds(1)
    assert len(pen.frames) <= 2
