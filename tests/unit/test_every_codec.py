"""Clauses that every codec keeps, whatever it does to numbers."""

import asyncio
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as drawn

from transports import Block, WireError, codec_names, find_codec, pack, unpack
from transports.local import world
from transports.wire.arrays import SIZES

every_codec = pytest.mark.parametrize("codec", codec_names())
NARROW = {"fp16": torch.float16, "bf16": torch.bfloat16}
BLOCK = 4096
FLOATS = ("float16", "bfloat16", "float32", "float64")


def through(codec, *arrays):
    packed = pack(codec, arrays)
    return unpack(packed.blocks, packed.note)


def test_an_unknown_codec_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=f"unknown codec 'gzip'; known: {', '.join(codec_names())}"):
        find_codec("gzip")


def drawn_tensor(dtype, shape):
    """Random values, the same in every run: any bits of an integer, normal floats over 20 powers of two."""
    generator = torch.Generator().manual_seed(sum(map(ord, dtype)))
    if dtype in FLOATS:
        powers = torch.randint(-10, 10, shape, generator=generator)
        return (torch.randn(shape, generator=generator, dtype=torch.float64) * 2.0**powers).to(getattr(torch, dtype))
    count = int(np.prod(shape)) * SIZES[dtype]
    raw = torch.randint(0, 2 if dtype == "bool" else 256, (count,), generator=generator, dtype=torch.uint8)
    return raw.view(getattr(torch, dtype)).reshape(shape)


def nearest(codec, tensor):
    """What a codec is to bring back of a tensor; None where it is only to come near (blockwise8)."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if find_codec(codec).lossless or dtype not in FLOATS or (codec in NARROW and dtype not in ("float32", "float64")):
        return tensor
    return tensor.float().to(NARROW[codec]).to(tensor.dtype) if codec in NARROW else None


@every_codec
@pytest.mark.parametrize("dtype", SIZES)
def test_dtype_shape_and_values_come_back_whatever_they_are(codec, dtype):
    for shape in [(), (0,), (3, 0, 2), (1,), (7, 5), (2, 1, 4097)]:
        tensor = drawn_tensor(dtype, shape)
        (back,) = through(codec, tensor)
        assert (back.dtype, back.shape, back.nbytes) == (dtype, shape, tensor.nbytes)
        expected = nearest(codec, tensor)
        if expected is not None:
            assert bytes(back.data) == bytes(Block.of(expected).data), shape
        elif tensor.numel():
            true, came = tensor.double().reshape(-1), back.torch().double().reshape(-1)
            for whole, near in zip(true.split(BLOCK), came.split(BLOCK), strict=True):
                assert abs(near - whole).max() <= abs(whole).max() * (0.0072 + 2**-8), shape


LEFT_ALONE = [(codec, dtype) for codec in codec_names() for dtype in ("uint8", "int16", "float16", "bfloat16")]
LEFT_ALONE = [case for case in LEFT_ALONE if case[0] != "blockwise8" or case[1] not in FLOATS]  # which it codes


@pytest.mark.parametrize(("codec", "dtype"), LEFT_ALONE)
def test_every_pattern_of_bits_that_a_codec_leaves_alone_comes_back(codec, dtype):
    raw = np.arange(1 << 8 * SIZES[dtype]).astype(f"u{SIZES[dtype]}").tobytes()
    (back,) = through(codec, Block(dtype, (len(raw) // SIZES[dtype],), memoryview(raw)))
    assert bytes(back.data) == raw


@every_codec
@pytest.mark.parametrize("dtype", FLOATS)
def test_values_come_back_as_near_as_eight_bits_allow(codec, dtype):
    values = torch.linspace(-2, 2, 10_001).to(getattr(torch, dtype))
    (back,) = through(codec, values)
    assert abs(back.torch().double() - values.double()).max() <= 2 * 0.0072 + 2 * 2**-8
    if find_codec(codec).lossless:
        assert torch.equal(back.torch(), values)


@every_codec
def test_arrays_with_strides_are_read_in_logical_order(codec):
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    for part in (values.T, values[::2, ::3], values[:, ::-1]):
        (back,) = through(codec, part)
        (solid,) = through(codec, np.ascontiguousarray(part))
        assert back.shape == part.shape and (back.numpy() == solid.numpy()).all()


@every_codec
@given(drawn.arrays(st.sampled_from([np.int64, np.uint8, np.bool_, np.complex64]), drawn.array_shapes(min_side=0)))
def test_dtypes_other_than_floats_come_back_to_the_bit(codec, array):
    (back,) = through(codec, array)
    assert bytes(back.data) == array.tobytes()


@every_codec
def test_the_array_itself_is_left_as_it_was(codec):
    values = np.linspace(-1, 1, 5000, dtype=np.float32)
    before = values.copy()
    through(codec, values)
    assert (values == before).all()


@every_codec
def test_what_was_coded_comes_back_in_memory_that_may_be_written_to(codec):
    (back,) = through(codec, np.zeros(100_000, np.float32))
    assert not back.data.readonly


@every_codec
async def test_a_packed_message_travels_like_any_other(codec):
    values = np.linspace(-1, 1, 5000, dtype=np.float32).reshape(50, 100)

    one, other = world(2)
    packed = pack(codec, [values])
    sending = asyncio.create_task(one.send(1, ("x",), *packed.blocks, note=packed.note))
    frame = await other.receive(0, ("x",))
    await sending
    (block,), sent, announced = unpack(frame.blocks, frame.note), one.traffic.bytes_to[1], packed.nbytes
    assert block.shape == (50, 100) and sent == announced


@every_codec
def test_parts_that_are_missing_are_an_error_of_the_wire(codec):
    packed = pack(codec, [np.zeros(100_000, np.float32)])
    assert packed.nbytes <= 200_000
    with pytest.raises(WireError, match="do not match"):
        unpack(packed.blocks[:-1], packed.note)


ALONE = """
import sys
import numpy as np
from transports import Block, codec_names, pack, unpack
true = Block("bfloat16", (3,), memoryview(bytearray(b"\\x80\\x3f\\x00\\x40\\x80\\xbf")))  # 1, 2, -1
for name in codec_names():
    for block in (true, Block.of(np.array([0.5, 1.0, -1.0], np.float32))):
        packed = pack(name, [block])
        (back,) = unpack(packed.blocks, packed.note)
        assert (back.dtype, back.shape) == (block.dtype, block.shape)
assert "torch" not in sys.modules
"""


def test_codecs_work_without_torch():
    subprocess.run([sys.executable, "-c", ALONE], check=True, timeout=60)
