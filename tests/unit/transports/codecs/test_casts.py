"""The casts to 16 bits round as torch does, with and without it, and say what does not fit."""

import re
import sys

import numpy as np
import pytest
import torch

from transports import ArrayType, Block, WireError, find_codec
from transports.codecs import floats as _floats


@pytest.fixture(params=["with torch", "without torch"])
def either(request, monkeypatch):
    """Both ways in which the casts are made."""
    if request.param == "without torch":
        monkeypatch.delitem(sys.modules, "torch")


def patterns(bits):
    """Every float32 with any upper 16 bits and these lower ones."""
    values = (np.arange(1 << 16, dtype=np.uint32) << 16) + np.uint32(bits)
    return values.view(np.float32)


@pytest.mark.parametrize("lower", [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
def test_bfloat16_is_rounded_as_torch_does(either, lower):
    values = patterns(lower)
    expected = torch.from_numpy(values).bfloat16().view(torch.uint16).numpy()
    numbers = ~np.isnan(values)
    rounded = _floats.to_bfloat16(values)
    assert (rounded[numbers] == expected[numbers]).all()
    assert np.isnan(_floats.from_bfloat16(rounded)[~numbers]).all()


def test_every_bfloat16_comes_back_as_it_is(either):
    bits = np.arange(1 << 16, dtype=np.uint16)
    wide = _floats.from_bfloat16(bits)
    numbers = ~np.isnan(wide)
    assert (_floats.to_bfloat16(wide)[numbers] == bits[numbers]).all()


def test_every_float16_comes_back_as_it_is(either):
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    back = _floats.to_float16(_floats.from_float16(halves))
    numbers = ~np.isnan(halves)
    assert (back.view(np.uint16)[numbers] == halves.view(np.uint16)[numbers]).all()
    assert np.isnan(back[~numbers]).all()


def test_float16_is_rounded_as_numpy_does(either):
    values = np.random.default_rng(0).standard_normal(10_000).astype(np.float32) * 100
    assert (_floats.to_float16(values) == values.astype(np.float16)).all()


def test_memory_that_may_not_be_written_to_is_read(either):
    block = Block.of(np.arange(6, dtype=np.float32).tobytes())
    flat = Block("float32", (6,), block.data)
    assert flat.data.readonly
    for name in ("fp16", "bf16"):
        assert find_codec(name).encode(flat)[0].nbytes == 12


def test_overflow_of_float16_is_refused_with_the_value():
    with pytest.raises(WireError, match=r"largest magnitude: 70000, limit: 65504.*bf16"):
        find_codec("fp16").encode(Block.of(np.array([1, -7e4, np.inf], np.float32)))


@pytest.mark.parametrize("large", [5e38, -1e300])
@pytest.mark.parametrize(("name", "limit"), [("fp16", "65504"), ("bf16", r"3.38953e\+38")])
def test_a_finite_float64_is_never_made_infinite(either, name, limit, large):
    with pytest.raises(
        WireError, match=rf"\(largest magnitude: {re.escape(f'{abs(large):g}')}, limit: {limit}\); use "
    ):
        find_codec(name).encode(Block.of(np.array([1.0, large, np.nan])))


def test_a_float32_that_bfloat16_would_round_to_infinity_is_refused(either):
    with pytest.raises(
        WireError, match=r"a value beyond bfloat16 \(largest magnitude: 3.40282e\+38, limit: 3.38953e\+38"
    ):
        find_codec("bf16").encode(Block.of(np.array([np.finfo(np.float32).max, np.inf], np.float32)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_infinities_stay_infinite(either, name, dtype):
    values = np.array([np.inf, -np.inf, np.nan, 1], dtype)
    codec, original = find_codec(name), ArrayType(np.dtype(dtype).name, (4,))
    assert str(codec.decode(codec.encode(Block.of(values)), original).numpy().tolist()) == "[inf, -inf, nan, 1.0]"
