"""A reader that is given a stream up to any byte says whether a frame was cut there."""

from types import SimpleNamespace

import pytest

from transports import Block
from transports.rpc.frames import KINDS, RpcKind
from transports.stream.incoming import IncomingMessage
from transports.stream.reader import FrameReader
from transports.wire.frames import PREAMBLE_BYTES, encode


def reader_given(data: bytes) -> FrameReader:
    receiver = SimpleNamespace(
        on_header=lambda preamble, header: IncomingMessage(header), on_frame=lambda preamble, header, body: None
    )
    reader = FrameReader(KINDS, receiver)
    reader.buffer()[: len(data)] = data
    reader.advance(len(data))
    return reader


@pytest.mark.parametrize("header_bytes", [PREAMBLE_BYTES - 1, PREAMBLE_BYTES, PREAMBLE_BYTES + 1])
@pytest.mark.parametrize("body", [b"", b"body"])
def test_every_cut_inside_a_frame_is_inside(header_bytes, body):
    frames = (encode(RpcKind.REQUEST, (0, "t" * size), [Block.bare(body)] if body else []) for size in range(32))
    stream = next(
        stream
        for stream in (b"".join(map(bytes, frame)) for frame in frames)
        if len(stream) == PREAMBLE_BYTES + header_bytes + len(body)
    )
    inside = [cut for cut in range(len(stream) + 1) if reader_given(stream[:cut]).inside]
    assert inside == list(range(1, len(stream)))
