"""What comes in, whole or in parts, spoilt or sound: it is heard once and whole, or it is an error of the wire."""

import asyncio
import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.transports.wire.wire_streams import spoilt
from transports import WireError
from transports.rpc import Party, Response
from transports.rpc.frames import KINDS
from transports.rpc.frames import RpcKind as Kind
from transports.rpc.server import Handlers
from transports.rpc.session import RpcSession
from transports.rpc.tcp.reassembly import Reassembly
from transports.stream.reader import FrameReader
from transports.wire.arrays import Block
from transports.wire.frames import encode, encode_bare, encode_head

SPOILT_BYTES = 1 << 17
ROOM = 1 << 20


class Silence:
    """A line that nothing leaves by."""

    def send(self, kind, key, blocks=(), note=None, out=lambda: None):
        out()

    def withdraw(self, kind, number):
        pass


class Hearing:
    """One end that is read to."""

    def __init__(self):
        self.heard, self.received = [], []
        self.handlers = Handlers(ROOM)
        self.handlers.handle("echo", self.echo, ROOM, 1024)
        self.session = RpcSession(self.handlers, Silence())
        self.session.peer = Party("tcp://127.0.0.1:9", 1)
        self.stream = FrameReader(KINDS, Reassembly(self.session, self.received.append))

    async def echo(self, request):
        self.heard.append((request.note, b"".join(bytes(block.data) for block in request.blocks)))
        return Response()

    def read(self, stream, most):
        """Read a stream, no more than so many bytes at once."""
        stream = memoryview(stream)
        while stream:
            buffer = self.stream.buffer()
            count = min(buffer.nbytes, len(stream), most)
            buffer[:count] = stream[:count]
            stream = stream[count:]
            self.stream.advance(count)


def frame(kind, key, *arrays, note=None, stream=0):
    return b"".join(encode(kind, key, [Block.of(array) for array in arrays], note, number=stream))


def in_parts(number, body, stream, lengths):
    """A request with its body cut into parts of these lengths, and the rest."""
    frames = [encode_head(Kind.REQUEST, (number, "echo"), [Block.of(body)], number, number=stream)]
    while body:
        length = lengths.pop() if lengths else len(body)
        frames.append(encode_bare(Kind.PART, stream, len(body[:length])) + body[:length])
        body = body[length:]
    return frames


CUTS = st.lists(st.lists(st.integers(1, 5000), max_size=5), min_size=1, max_size=4)


@settings(max_examples=30)
@given(CUTS, st.integers(100, 70_000), st.randoms())
def test_bodies_in_parts_come_together_however_they_are_mixed_and_read(cuts, most, mixed):
    bodies = [random.Random(n).randbytes(9000 * (n + 1)) for n in range(len(cuts))]
    queues = [in_parts(n, body, n + 1, list(cut)) for n, (body, cut) in enumerate(zip(bodies, cuts, strict=True))]
    heads, stream = [queue.pop(0) for queue in queues], []  # requests of one topic keep their order
    while any(queues):
        stream.append(mixed.choice([queue for queue in queues if queue]).pop(0))

    async def scenario():
        end = Hearing()
        end.read(b"".join(heads + stream), most)
        for _ in range(3):
            await asyncio.sleep(0)
        assert sorted(end.heard) == list(enumerate(bodies))
        assert sum(end.received) == sum(map(len, bodies))

    asyncio.run(scenario())


def sound():
    """Frames of a talk, each fit to be heard by itself, or after those before it."""
    arrays = np.arange(12, dtype=np.float32).reshape(3, 4), np.array([True, False])
    return [
        frame(Kind.REQUEST, (0, "echo"), *arrays, note={"a": [1, {"b": None}]}),
        frame(Kind.REQUEST, (1, "unknown"), bytes(100)),
        frame(Kind.REQUEST, (2, "echo"), bytes(64), stream=3)[:-64],
        encode_bare(Kind.PART, 3, 40) + bytes(40),
        encode_bare(Kind.PART, 3, 24) + bytes(24),
        frame(Kind.REQUEST, (3, "echo"), bytes(64), stream=4)[:-64],
        encode_bare(Kind.PART, 4, 0),
        frame(Kind.CANCEL, (2,)),
        frame(Kind.REJECTED, (0, "stale"), note={"step": 3}),
    ]


def test_corrupted_frames_are_read_or_raise_a_wire_error():
    rng, done, refused = random.Random(SPOILT_BYTES), 0, 0

    async def scenario():
        nonlocal done, refused
        while done < SPOILT_BYTES:
            end, stream = Hearing(), spoilt(rng, sound())
            done += len(stream)
            try:
                end.read(stream, rng.choice((1, 20, 1000)))
            except WireError:
                refused += 1
            await asyncio.sleep(0)
            await end.handlers.close()
            assert not end.handlers.failed.done()

    asyncio.run(scenario())
    assert refused > 50


async def test_the_frames_before_corruption_are_valid():
    end = Hearing()
    end.read(b"".join(sound()), 7)
    for _ in range(3):
        await asyncio.sleep(0)
    assert [note for note, _ in end.heard] == [{"a": [1, {"b": None}]}]  # the others are refused, cancelled, cut
    await end.handlers.close()
