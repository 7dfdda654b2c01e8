"""Streams of frames to be spoilt, and a reader that takes whatever comes as a rank does. Used by both fuzzers."""

import random
from enum import IntEnum
from types import SimpleNamespace

import numpy as np

from transports import Block, WireError
from transports.rpc.frames import RpcKind
from transports.stream.incoming import IncomingMessage
from transports.stream.reader import STAGING_BYTES, FrameReader
from transports.tcp.flow_control import Credit, credit_limit
from transports.tcp.peer import TcpKind
from transports.wire.frames import FrameKinds, Header, encode, encode_bare

Kind = IntEnum("Kind", {kind.name: kind.value for protocol in (TcpKind, RpcKind) for kind in protocol})
"""The kinds of both protocols over sockets; what MPI sends comes from ranks of one job."""
HEADERLESS = (Kind.BUFFER, Kind.CTS, Kind.DATA, Kind.PART)
NUMBERS = (0, 1, 0x7F, 0x80, 0xC1, 0xDC, 0xDD, 0xFF)


def frames():
    """One frame of every kind, and some that are harder to read."""
    array, flags = Block.of(np.arange(9, dtype=np.float32).reshape(3, 3)), Block.of(np.array([True, False]))
    deep = {"a": [1, 2.5, None, {"b": [b"bytes", "text"]}], 3: [[[[]]]]}
    frame_parts = [encode(kind, ("x", 3), note=deep, number=5) for kind in Kind if kind not in HEADERLESS]
    frame_parts += [encode(Kind.MESSAGE, (1, "activation", -7), [array, flags, Block.of(b"")], note="note")]
    frame_parts += [[encode_bare(kind, 3, 40), bytes(40)] for kind in (Kind.BUFFER, Kind.DATA, Kind.PART)]
    return [b"".join(map(bytes, parts)) for parts in [*frame_parts, [encode_bare(Kind.CTS, 3, 0)]]]


def spoilt(rng: random.Random, sound: list[bytes]) -> bytes:
    """A few frames one after another with a few changes anywhere."""
    stream = bytearray(b"".join(rng.choices(sound, k=rng.randint(1, 4))))
    for _ in range(rng.randint(0, 6)):
        place, length = rng.randrange(len(stream) + 1), rng.randint(1, 8)
        match rng.randrange(5):
            case 0:
                stream[place : place + 1] = bytes([rng.choice(NUMBERS)])
            case 1:
                stream[place : place + 1] = bytes([rng.randrange(256)])
            case 2:
                del stream[place : place + length]
            case 3:
                stream[place:place] = rng.randbytes(length)
            case 4:
                start = rng.randrange(len(stream) + 1)
                stream[place:place] = stream[start : start + 4 * length]
    return bytes(stream)


def read(data: bytes, step: int) -> int:
    """Feed a stream in pieces of at most so many bytes; returns the frames read before it ended or was refused.

    What is kept of it is bounded: headers by the wire's limits, bodies by the credit.
    """
    credit, count = Credit(credit_limit(64)), 0

    def on_header(preamble, header):
        body = IncomingMessage(header)
        credit.on_received(body.nbytes)
        return body

    def on_frame(preamble, header, body):
        nonlocal count
        count += 1
        assert isinstance(header, Header) and not body.remaining

    receiver, view = SimpleNamespace(on_header=on_header, on_frame=on_frame), memoryview(data)
    reader = FrameReader(FrameKinds(Kind, HEADERLESS), receiver)
    try:
        while view:
            buffer = reader.buffer()
            size = min(len(buffer), len(view), step)
            assert 0 < len(buffer) <= max(STAGING_BYTES, credit_limit(64))
            buffer[:size] = view[:size]
            view = view[size:]
            reader.advance(size)
    except WireError as error:
        assert str(error)
    return count
