"""Whatever bytes come, in whatever pieces: the stream gives its frames or a WireError, and a live rank never hangs."""

import asyncio
import socket
from contextlib import asynccontextmanager, suppress

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conformance.worlds import InProcess, kill
from tests.unit.transports.tcp.join.calling import connect
from transports import PeerLost, RendezvousError, TransportError, WireError
from transports.stream.handshake import PROOF_BYTES, VERDICT, Role, Verdict
from transports.stream.incoming import IncomingMessage
from transports.stream.reader import DIRECT_BYTES, STAGING_BYTES, FrameReader
from transports.stream.sockets import HANDSHAKE_TIMEOUT_S, accept, connect_to, listen, read_exactly
from transports.tcp.flow_control import credit_limit
from transports.tcp.join.config import TcpConfig
from transports.tcp.join.host import RendezvousHost
from transports.tcp.join.identity import HELLO, RankIdentity, digest
from transports.tcp.join.meeting_points import LOOPBACK
from transports.tcp.join.rendezvous import join_world
from transports.tcp.peer import KINDS
from transports.tcp.peer import TcpKind as Kind
from transports.tcp.transport import TcpTransport
from transports.wire.frames import LIMITS, Block, encode, encode_bare


class Reader:
    """A frame reader and all that came out of it: [kind, key or channel, note, contents of the blocks]."""

    def __init__(self):
        self.frames, self.begun = [], []
        self.stream = FrameReader(KINDS, self)

    def feed(self, data):
        """Give the bytes as the reader asks for them."""
        data = memoryview(data)
        while data:
            buffer = self.stream.buffer()
            count = min(len(buffer), len(data))
            assert count
            buffer[:count] = data[:count]
            data = data[count:]
            self.stream.advance(count)

    def on_header(self, preamble, header):
        self.begun.append(IncomingMessage(header))
        return self.begun[-1]

    def on_frame(self, preamble, header, incoming):
        self.frames.append((preamble.kind, header.key, header.note, [bytes(block.data) for block in incoming.blocks]))


def laid_out(frames):
    return b"".join(bytes(part) for key, sizes, note in frames for part in message(key, sizes, note))


def message(key, sizes, note):
    return encode(Kind.MESSAGE, key, [Block.of(contents(size)) for size in sizes], note)


def contents(size):
    return np.arange(size, dtype=np.uint8)


def expected(frames):
    return [(Kind.MESSAGE, key, note, [contents(size).tobytes() for size in sizes]) for key, sizes, note in frames]


SIZES = st.sampled_from([0, 1, 7, 300, DIRECT_BYTES - 1, DIRECT_BYTES, 3 * DIRECT_BYTES, STAGING_BYTES + 5])
FRAMES = st.lists(
    st.tuples(
        st.tuples(st.integers(-5, 5), st.text(max_size=5)),
        st.lists(SIZES, max_size=3),
        st.one_of(st.none(), st.text(max_size=9)),
    ),
    min_size=1,
    max_size=6,
)
ONE = [((3, "activation"), [0, 9, 0, DIRECT_BYTES], "note")]


@given(FRAMES, st.lists(st.integers(1, 2 * STAGING_BYTES), min_size=1, max_size=12))
def test_frames_are_the_same_however_the_network_cuts_the_stream(frames, steps):
    reader, data, at, turn = Reader(), laid_out(frames), 0, 0
    while at < len(data):
        step = steps[turn % len(steps)] if len(data) // len(steps) < 64 * max(steps) else len(data)
        reader.feed(data[at : at + step])
        at, turn = at + step, turn + 1
    assert reader.frames == expected(frames)


def test_frames_parse_the_same_byte_by_byte_and_in_a_longer_stream():
    data = laid_out(ONE)
    reader = Reader()
    for place in range(len(data)):
        reader.feed(data[place : place + 1])
    reader.feed(data + data[:21])
    assert reader.frames == 2 * expected(ONE)


async def test_a_stream_cut_at_any_byte_gives_no_frame_and_no_error():
    data = laid_out(ONE)
    for end in [*range(600), *range(600, len(data), 977), len(data) - 1]:
        reader = Reader()
        reader.feed(data[:end])
        assert not reader.frames
        reader.stream.fail(PeerLost(1, "cut"))
        for incoming in reader.begun:
            with pytest.raises(PeerLost):
                await incoming.wait_complete()


@given(st.binary(max_size=2000))
@example(bytes(20))
@example(b"\x93pip" + b"\xff" * 16)
@example(b"\x93pip\x01\x01\0\0" + b"\0\0\0\1" + bytes(8) + b"\xc1")
def test_random_bytes_give_a_wire_error_or_wait_for_more(noise):
    for front in (b"", b"\x93pip\x01", b"\x93pip\x01\x01\0\0\0\0\0\x09" + bytes(8)):
        reader = Reader()
        try:
            reader.feed(front + noise)
        except WireError as error:
            assert str(error)
        assert len(reader.stream.buffer()) <= STAGING_BYTES


@given(st.integers(0, 90), st.integers(1, 255))
def test_a_changed_byte_gives_a_wire_error_another_frame_or_a_wait_and_nothing_else(place, mask):
    frames = [((3, "activation"), [9, 40], "note")]
    data = bytearray(laid_out(frames))
    data[place % len(data)] ^= mask
    reader = Reader()
    try:
        reader.feed(data)
    except WireError:
        assert not reader.frames


@pytest.mark.parametrize(
    ("header_bytes", "body_bytes"),
    [(LIMITS.header + 1, 0), (2**32 - 1, 0), (0, LIMITS.body + 1), (0, 2**64 - 1)],
)
@pytest.mark.parametrize("kind", list(Kind))
def test_sizes_beyond_the_limits_are_refused_before_memory_is_taken(kind, header_bytes, body_bytes):
    preamble = encode(kind)[0][:8] + header_bytes.to_bytes(4, "big") + body_bytes.to_bytes(8, "big")
    reader = Reader()
    with pytest.raises(WireError, match="limit"):
        reader.feed(preamble)
    assert not reader.begun


@asynccontextmanager
async def live():
    """Rank 0 of three, with the test at the other end of both connections."""
    socks = [socket.socketpair() for _ in range(2)]
    for sock in (sock for pair in socks for sock in pair):
        sock.setblocking(False)
    here = TcpTransport(0, 3, {rank: pair[0] for rank, pair in enumerate(socks, 1)}, max_kept=credit_limit(3))
    try:
        yield here, socks[0][1], socks[1][1]
    finally:
        kill(here)
        for _, there in socks:
            there.close()


async def survives(noise, hang_up=True):
    """Send noise as rank 1: it is lost or its frames are there, and rank 2 is heard all the same."""
    async with live() as (here, mad, sane), asyncio.timeout(5):
        pending = asyncio.ensure_future(here.receive(1, ("never",)))
        await asyncio.get_running_loop().sock_sendall(mad, noise)
        if hang_up:
            mad.close()
            with pytest.raises(TransportError):
                await pending
        await asyncio.get_running_loop().sock_sendall(sane, laid_out([(("fine",), [5], None)]))
        assert bytes((await here.receive(2, ("fine",))).blocks[0].data) == bytes(range(5))
        pending.cancel()


@settings(max_examples=60)
@given(st.binary(max_size=300), st.booleans())
def test_a_live_rank_outlives_a_peer_that_sends_noise(noise, framed):
    asyncio.run(survives(laid_out(ONE) + noise if framed else noise))


async def test_a_live_rank_outlives_a_peer_cut_off_at_any_byte():
    data = laid_out([((3, "x"), [9, 40], "note")]) + encode_bare(Kind.BUFFER, 7, 16) + bytes(16)
    for end in range(len(data)):
        await survives(data[:end])


@pytest.mark.parametrize(
    "frame",
    [
        encode_bare(Kind.BUFFER, 16384, 4) + bytes(4),
        b"".join(map(bytes, encode(Kind.GOODBYE, (), [Block.of(b"body")]))),
    ],
)
async def test_unexpected_frames_lose_the_peer(frame):
    async with live() as (here, mad, _):
        mad.send(frame)
        with pytest.raises(PeerLost, match="unexpected kind of frame"):
            await here.receive(1, ("never",))


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        (
            [encode_bare(Kind.DATA, 3, 8), bytes(8)],
            r"DATA of another size than its RTS \(came: 8 bytes, offered: nothing",
        ),
        ([*encode(Kind.RTS, ("x",), number=3), encode_bare(Kind.DATA, 3, 8)], r"came: 8 bytes, offered: 0 bytes"),
        (2 * encode(Kind.RTS, ("x",), number=3), r"a number offered twice \(number: 3"),
        (encode(Kind.RTS_BUFFER, (16384,)), r"a buffer offered on no channel"),
        (encode(Kind.RTS_BUFFER, ("x",)), r"a buffer offered on no channel"),
        ([encode_bare(Kind.CTS, 3, 0)], r"CTS for an unknown offer \(number: 3"),
        (encode(Kind.CREDIT, note=1), r"more credit than was spent \(credit: 1, bytes sent unexpected: 0"),
        (encode(Kind.CREDIT, note="much"), r"more credit than was spent \(credit: 'much'"),
        ([encode_bare(Kind.BUFFER, 3, 1 << 30)], r"more unexpected messages than are kept here"),
    ],
)
async def test_a_peer_that_breaks_the_rules_of_credit_is_lost_with_the_reason(frames, why):
    async with live() as (here, mad, sane):
        mad.send(b"".join(map(bytes, frames)))
        with pytest.raises(PeerLost, match=why):
            await here.receive(1, ("never",))
        sane.send(laid_out([(("fine",), [5], None)]))
        await here.receive(2, ("fine",))


async def test_a_message_for_which_there_is_no_memory_loses_its_peer_only(monkeypatch):
    def no_memory(layouts, into=None):
        raise MemoryError

    async with live() as (here, mad, sane):
        with monkeypatch.context() as patch:
            patch.setattr("transports.stream.incoming.blocks_for", no_memory)
            mad.send(laid_out([(("huge",), [100], None)]))
            with pytest.raises(PeerLost, match="no memory"):
                await here.receive(1, ("huge",))
        sane.send(laid_out([(("fine",), [5], None)]))
        await here.receive(2, ("fine",))


def identity(rank):
    return RankIdentity(rank, 2, digest("none/0"), 1 + rank, b"key")


async def test_a_caller_cut_off_at_any_byte_of_the_handshake_does_not_disturb_the_acceptor():
    point = InProcess()
    listener = await point.listen()
    gathering = asyncio.create_task(RendezvousHost(identity(0), 20.0).admit_all(listener))
    words = identity(1).hello(Role.CONNECTOR, 0).pack() + bytes(PROOF_BYTES)
    for end in range(HELLO.size + 1):
        with await connect_to(listener.getsockname()) as sock:
            sock.send(words[:end])
            sock.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError):
                await read_exactly(sock, HELLO.size + 1)  # until it hangs up
    config = TcpConfig(1, 2, LOOPBACK, 0, shared_key=b"key")
    seated, peers = await asyncio.gather(gathering, join_world(config, point))
    for sock in [*peers.values(), *(sock for sock, _ in seated.values())]:
        sock.close()


@settings(max_examples=60)
@given(st.binary(max_size=HELLO.size + VERDICT.size), st.sampled_from(["noise", "hello", "verdict"]))
def test_a_reply_that_is_not_a_handshake_fails_the_attempt_at_once(noise, until):
    hello = identity(0).hello(Role.ACCEPTOR, 1).pack()
    front = {"noise": b"", "hello": hello, "verdict": hello + bytes([Verdict.ACCEPTED])}[until]

    async def answer(listener):
        with await accept(listener) as sock:
            await read_exactly(sock, HELLO.size)
            await asyncio.get_running_loop().sock_sendall(sock, front + noise)
            sock.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError):
                await read_exactly(sock, PROOF_BYTES + 1)  # until it hangs up

    async def scenario():
        with listen((LOOPBACK, 0)) as listener:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S), asyncio.TaskGroup() as group:
                group.create_task(answer(listener))
                with pytest.raises((TransportError, ConnectionResetError)) as caught:
                    await connect(listener.getsockname(), identity(1), 0)
        if isinstance(caught.value, TransportError):
            assert "PIPELINED_KEY" in str(caught.value) or isinstance(caught.value, RendezvousError)

    asyncio.run(scenario())
