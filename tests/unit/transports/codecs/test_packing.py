"""Packed messages: what is announced is checked before memory is taken, and every refusal is the wire's own."""

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transports import Block, WireError, pack, unpack

GOOD = pack("blockwise8", [np.ones((3, 5), np.float32)])


@pytest.mark.parametrize(
    ("note", "reason"),
    [
        (None, "without its header"),
        ([], "without its header"),
        (["blockwise8"], "without its header"),
        ([7, []], "without its header"),
        (["blockwise8", [[]] * 1000], "without its header"),
        (["blosc", []], "unknown codec 'blosc'; known: .*blockwise8.*zstd"),
        (["_find", []], "unknown codec"),
        (["../zstd", []], "unknown codec"),
        (["zstd:99", []], "takes a number"),
        (["zstd:", []], "empty argument in codec 'zstd:'; write zstd"),
        (["fp16:", []], "empty argument in codec 'fp16:'; write fp16$"),
        (["blockwise8", ["x"]], "is not .dtype, shape, parts"),
        (["blockwise8", [["float32", [3, 5], -1]]], "is not .dtype, shape, parts"),
        (["blockwise8", [["float32", [3, 5], True]]], "is not .dtype, shape, parts"),
        (["blockwise8", [["float33", [3, 5], 2]]], "unknown dtype"),
        (["blockwise8", [["float32", [3, -5], 2]]], "sizes from 0 up"),
        (["blockwise8", [["float32", [1 << 60], 2]]], "too many bytes"),
        (["blockwise8", [["float32", [1 << 30], 2]]], "too many bytes in a packed message"),
        (["blockwise8", [["float32", [3, 5], 1]]], "do not match their header"),
        (["blockwise8", [["float32", [3, 5], 2]] * 2], "do not match their header"),
        (["blockwise8", [["float32", [4, 4], 2]]], "in eight bits a value"),
        (["blockwise8", [["int32", [3, 5], 2]]], "no int32"),
        (["blockwise8", [["float32", [3, 5], 0], ["float32", [1], 0]]], "left as it is differs"),
        (["blockwise8:16", [["float32", [3, 5], 2]]], None),
        (["blockwise8:2", [["float32", [3, 5], 2]]], "in eight bits a value"),
        (["fp16", [["float32", [15], 1], ["float32", [1], 0]]], "cast to float16"),
    ],
)
def test_a_false_header_is_refused_with_the_reason(note, reason):
    if reason is None:
        assert unpack(GOOD.blocks, note)[0].shape == (3, 5)
        return
    with pytest.raises(WireError, match=reason):
        unpack(GOOD.blocks, note)


def test_a_message_beyond_the_receivers_limit_is_refused_with_both_numbers():
    with pytest.raises(WireError, match="announced: 60, limit: 59"):
        unpack(GOOD.blocks, GOOD.note, max_bytes=59)


def test_the_error_names_the_value_that_cannot_be_packed():
    with pytest.raises(WireError, match=r"^the gradient: a value that is not finite"):
        pack("blockwise8", [np.array([np.nan], np.float32)], "the gradient")


def test_several_arrays_keep_their_order():
    arrays = [np.ones(3), np.arange(4), np.zeros((2, 0), np.float32), np.full((), 2.0, np.float32)]
    packed = pack("bf16", arrays)
    assert [entry[2] for entry in packed.note[1]] == [1, 0, 0, 1]
    back = unpack(packed.blocks, packed.note)
    assert all((block.numpy() == array).all() for block, array in zip(back, arrays, strict=True))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**63) | st.sampled_from(["zstd", "fp16", "float32", "uint8"]),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@given(PLAIN, st.lists(st.binary(max_size=40), max_size=3))
def test_whatever_is_in_a_header_only_the_wires_error_comes_out(note, parts):
    try:
        unpack([Block.of(part) for part in parts], note, max_bytes=1 << 16)
    except WireError:
        pass


@given(st.sampled_from(["blockwise8", "bf16", "fp16", "zstd"]), st.data())
def test_a_packed_message_with_any_bytes_changed_gives_an_array_or_the_wires_error(codec, data):
    values = np.zeros(300, np.float32)
    packed = pack(codec, [values])
    header = bytearray(msgpack.packb(packed.note))
    parts = [bytearray(block.data) for block in packed.blocks]
    for target in (header, *parts):
        for place, value in data.draw(st.dictionaries(st.integers(0, len(target) - 1), st.integers(0, 255))).items():
            target[place] = value
    try:
        note = msgpack.unpackb(header, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException):  # TypeError: a map whose key is a map
        return
    blocks = [
        Block(block.dtype, block.shape, memoryview(part)) for block, part in zip(packed.blocks, parts, strict=True)
    ]
    try:
        unpack(blocks, note, max_bytes=1 << 16)
    except WireError:
        pass
