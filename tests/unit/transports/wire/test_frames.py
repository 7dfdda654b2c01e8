"""The wire: what goes in comes out, nothing is copied, and nothing beyond a limit is believed."""

import struct

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transports import Block, WireError
from transports.tcp.peer import KINDS
from transports.tcp.peer import TcpKind as Kind
from transports.wire.arrays import SIZES
from transports.wire.frames import (
    LIMITS,
    MAGIC,
    PREAMBLE_BYTES,
    VERSION,
    encode,
    encode_bare,
    encode_head,
    pack_header,
    parse_header,
    parse_preamble,
    split_body,
    unpack_header,
)

KEYS = st.lists(st.integers(-(2**63), 2**64 - 1) | st.text(max_size=20), max_size=16).map(tuple)
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text()
NOTES = st.recursive(SCALARS | st.binary(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
SHAPES = st.lists(st.integers(0, 4), max_size=16).map(tuple).filter(lambda shape: np.prod(shape) < 1000)


@st.composite
def blocks(draw):
    dtype, shape = draw(st.sampled_from(sorted(SIZES))), draw(SHAPES)
    nbytes = int(np.prod(shape)) * SIZES[dtype]
    return Block(dtype, shape, memoryview(draw(st.binary(min_size=nbytes, max_size=nbytes))))


def parse(frame):
    """A whole frame in one piece -> (preamble, header, blocks)."""
    preamble = parse_preamble(frame, KINDS)
    start = PREAMBLE_BYTES + preamble.header_bytes
    header = parse_header(preamble, frame[PREAMBLE_BYTES:start])
    return preamble, header, split_body(header.layouts, memoryview(frame)[start:])


def forged(fields, body_bytes=0, kind=Kind.MESSAGE):
    """A frame that our own encoder would not write."""
    packed = fields if isinstance(fields, bytes) else msgpack.packb(fields)
    return struct.pack("!4sBBHIQ", MAGIC, VERSION, kind, 0, len(packed), body_bytes) + packed


@given(
    st.sampled_from([Kind.MESSAGE, Kind.RTS, Kind.CREDIT]),
    KEYS,
    NOTES,
    st.lists(blocks(), max_size=5),
    st.integers(0, 65535),
)
def test_round_trip(kind, key, note, sent, number):
    frame = b"".join(encode(kind, key, sent, note, number=number))
    preamble, header, came = parse(frame)
    assert (preamble.kind, preamble.number, header.key, header.note) == (kind, number, key, note)
    assert unpack_header(pack_header(key, sent, note)) == header
    assert [(b.dtype, b.shape, bytes(b.data)) for b in came] == [(b.dtype, b.shape, bytes(b.data)) for b in sent]
    assert preamble.body_bytes == sum(block.nbytes for block in sent)


def test_a_frame_that_cannot_be_packed_does_not_spoil_the_next():
    before = encode(Kind.MESSAGE, ("k",), note=[1, 2])
    with pytest.raises(WireError, match="cannot be packed"):
        encode(Kind.MESSAGE, ("k",), note=[1, 2, object()])
    assert encode(Kind.MESSAGE, ("k",), note=[1, 2]) == before


def test_arrays_are_never_copied():
    array = np.arange(1000)
    head, body = encode(Kind.MESSAGE, ("k",), [Block.of(array), Block.of(np.empty(0))])
    assert np.shares_memory(np.frombuffer(body, np.int64), array)
    assert len(head) < 100


@pytest.mark.parametrize("number", [-1, 65536])
@pytest.mark.parametrize(
    "encoded",
    [lambda number: encode(Kind.RTS, number=number), lambda number: encode_bare(Kind.BUFFER, number, 4)],
    ids=["with_header", "bare"],
)
def test_a_number_beyond_two_bytes_is_refused(encoded, number):
    with pytest.raises(WireError, match=rf"no such number in a frame \(number: {number}, numbers: 65536\)"):
        encoded(number)


def test_a_bare_buffer_has_no_header():
    preamble, header, came = parse(encode_bare(Kind.BUFFER, 12345, 10) + bytes(10))
    assert (preamble.kind, preamble.number, preamble.body_bytes) == (Kind.BUFFER, 12345, 10)
    assert (preamble.header_bytes, header.layouts, came) == (0, (), ())


@pytest.mark.parametrize(
    ("preamble", "words"),
    [
        (b"", ["0", "20"]),
        (b"\0" * 19, ["19", "20"]),
        (struct.pack("!4sBBHIQ", b"HTTP", 1, 1, 0, 0, 0), ["HTTP", "another program"]),
        (struct.pack("!4sBBHIQ", MAGIC, 9, 1, 0, 0, 0), ["9", str(VERSION)]),
        (struct.pack("!4sBBHIQ", MAGIC, VERSION, 0, 0, 0, 0), ["kind: 0"]),
        (struct.pack("!4sBBHIQ", MAGIC, VERSION, max(Kind) + 1, 0, 0, 0), [f"kind: {max(Kind) + 1}"]),
        (struct.pack("!4sBBHIQ", MAGIC, VERSION, 6, 0, 0, 0), ["kind: 6", "known: 1, 2, 3, 4, 5, 7, 8, 9, 10"]),
        (struct.pack("!4sBBHIQ", MAGIC, VERSION, 1, 0, 65537, 0), ["65537", "65536"]),
        (struct.pack("!4sBBHIQ", MAGIC, VERSION, 1, 0, 0, 2**64 - 1), [str(2**64 - 1), str(64 << 30)]),
    ],
)
def test_a_bad_preamble_is_named_with_its_numbers(preamble, words):
    with pytest.raises(WireError) as error:
        parse_preamble(preamble, KINDS)
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    ("fields", "body_bytes", "words"),
    [
        (b"", 0, ["MESSAGE without a header"]),
        (b"\xc1", 0, ["not msgpack"]),
        (b"\xdd\xff\xff\xff\xff", 0, ["not msgpack"]),
        (msgpack.packb([[], None, []]) + b"\0", 0, ["not msgpack"]),
        (b"\x91" * 3000 + b"\xc0", 0, ["not msgpack"]),
        ({"key": []}, 0, ["dict"]),
        ([[], None], 0, ["3"]),
        (["key", None, []], 0, ["'key'"]),
        ([[], None, {}], 0, ["{}"]),
        ([[True], None, []], 0, ["True"]),
        ([[1.5], None, []], 0, ["1.5"]),
        ([[0] * 17, None, []], 0, ["17", "16"]),
        ([[], None, [["uint8", [0]]] * 65], 0, ["65", "64"]),
        ([[], None, [["uint8"]]], 0, ["uint8"]),
        ([[], None, [["object", [1]]]], 8, ["'object'", "float32"]),
        ([[], None, [[["uint8"], [1]]]], 8, ["uint8"]),
        ([[], None, [["uint8", [1] * 17]]], 1, ["17", "16"]),
        ([[], None, [["uint8", [-1]]]], 0, ["-1"]),
        ([[], None, [["uint8", [1.0]]]], 1, ["1.0"]),
        ([[], None, [["uint8", [True]]]], 1, ["True"]),
        ([[], None, [["float32", [3]]]], 13, ["12", "13"]),
        ([[], None, [["uint8", [2**40, 2**40]]]], 0, [str(2**80), str(64 << 30)]),
        ([[], None, [["uint8", [0, 2**62]]]], 0, [str(2**62), str(64 << 30)]),
    ],
)
def test_a_bad_header_is_named_with_its_numbers(fields, body_bytes, words):
    with pytest.raises(WireError) as error:
        parse(forged(fields, body_bytes))
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_bare_buffer_with_a_header_is_refused():
    with pytest.raises(WireError, match=r"BUFFER with a header \(bytes: 1\)"):
        parse(forged(b"\xc0", kind=Kind.BUFFER))


def test_a_header_cut_short_is_refused():
    head = encode_head(Kind.MESSAGE, ("k",))
    with pytest.raises(WireError, match=r"bytes: 3, announced: 6"):
        parse_header(parse_preamble(head, KINDS), head[PREAMBLE_BYTES:][:3])


@pytest.mark.parametrize(
    ("key", "sent", "note"),
    [
        ((1.0,), [], None),
        ((False,), [], None),
        ((2**64,), [], None),
        (("\ud800",), [], None),
        ((0,) * 17, [], None),
        ((), [Block.of(b"")] * 65, None),
        ((), [], object()),
        ((), [], "x" * 65536),
        ((), [Block("object", (), memoryview(b""))], None),
        ((), [Block.of(np.empty((1,) * 17))], None),
    ],
)
def test_encode_checks_its_limits(key, sent, note):
    with pytest.raises(WireError):
        encode(Kind.MESSAGE, key, sent, note)


def test_the_blocks_of_a_body_count_together():
    half = Block("uint8", (LIMITS.body // 2 + 1,), memoryview(b""))
    with pytest.raises(WireError, match=rf"too many body bytes \(got: {2 * half.shape[0]}, limit: {LIMITS.body}\)"):
        pack_header((), [half, half])


@given(st.binary(max_size=200))
def test_an_arbitrary_header_is_refused_or_harmless(noise):
    try:
        _, header, _ = parse(forged(noise))
    except WireError:
        return
    assert sum(layout.nbytes for layout in header.layouts) == 0


@given(st.data())
def test_a_damaged_frame_is_refused_or_keeps_to_its_size(data):
    frame = bytearray(b"".join(encode(Kind.MESSAGE, ("k", 1), [Block.of(np.arange(5))], {"n": 1})))
    place = data.draw(st.integers(0, len(frame) - 1))
    frame[place] = data.draw(st.integers(0, 255))
    try:
        preamble, header, _ = parse(bytes(frame))
    except WireError:
        return
    if preamble.kind is not Kind.BUFFER:
        assert sum(layout.nbytes for layout in header.layouts) == preamble.body_bytes
