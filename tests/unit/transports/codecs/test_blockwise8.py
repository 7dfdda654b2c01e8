"""Blocks of eight-bit codes have the known errors, and refuse what they cannot carry."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as drawn

from transports import Block, WireError, find_codec
from transports.codecs.blockwise8 import dequantise, quantise
from transports.codecs.code_book import code_book
from transports.wire.arrays import ArrayType


@pytest.mark.parametrize(("block", "known"), [(4096, 1.685e-4), (1024, 1.44e-4), (256, 1.17e-4)])
def test_the_mean_squared_error_of_normal_values_is_the_known_one(block, known):
    values = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
    back = dequantise(*quantise(values, block), block)
    assert np.mean((back - values) ** 2, dtype=float) == pytest.approx(known, rel=0.01)


@given(
    drawn.arrays(np.float32, st.integers(1, 3000), elements=st.floats(-(2.0**100), 2.0**100, width=32)),
    st.sampled_from([2, 64, 100, 256, 4096]),
)
def test_every_value_comes_back_as_the_nearest_of_its_blocks_codes(values, block):
    codes, scales = quantise(values, block)
    for number, start in enumerate(range(0, values.size, block)):
        numbers = values[start : start + block]
        largest = abs(numbers).max()
        assert scales[number] == largest
        scaled = (numbers / (largest or np.float32(1))).astype(float)
        distances = abs(scaled[:, None] - code_book().astype(float))
        chosen = codes[start : start + block]
        assert (distances[np.arange(numbers.size), chosen] == distances.min(axis=1)).all()
        assert (dequantise(codes, scales, block)[start : start + block] == code_book()[chosen] * largest).all()


@pytest.mark.parametrize("size", [1, 2, 4095, 4096, 4097, 65536, 65537, 3 * 65536 + 4097])
def test_every_size_survives_a_round_trip(size):
    values = np.linspace(-3, 3, size, dtype=np.float32)
    codes, scales = quantise(values)
    assert (codes.size, scales.size) == (size, -(-size // 4096))
    assert abs(dequantise(codes, scales) - values).max() <= 3 * 0.0071


def test_zeros_and_the_smallest_numbers_are_kept():
    tiny = np.float32(1e-45)
    for values in (np.zeros(5, np.float32), np.array([-tiny, 0, tiny, -0.0], np.float32)):
        assert (abs(dequantise(*quantise(values))) <= abs(values)).all()
        assert dequantise(*quantise(values)).max() == values.max()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused_with_its_place(wrong):
    values = np.zeros(10_000, np.float32)
    values[9_000] = wrong
    with pytest.raises(WireError, match=r"not finite.* from value 8192 on"):
        find_codec("blockwise8").encode(Block.of(values))


def test_a_value_beyond_float32_is_refused():
    with pytest.raises(WireError, match="beyond float32"):
        find_codec("blockwise8").encode(Block.of(np.array([1e300])))


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0])
def test_a_scale_that_no_encoder_writes_is_refused(scale):
    parts = (Block.of(np.zeros(8, np.uint8)), Block.of(np.array([scale], np.float32)))
    with pytest.raises(WireError, match="scale"):
        find_codec("blockwise8").check(parts, ArrayType("float32", (8,)))


@pytest.mark.parametrize("codes, scales", [(7, 1), (9, 1), (8, 0), (8, 2)])
def test_parts_of_another_size_are_refused_with_both(codes, scales):
    parts = (Block.of(np.zeros(codes, np.uint8)), Block.of(np.zeros(scales, np.float32)))
    with pytest.raises(WireError, match=rf"{codes}.*needed.*\(8,\)"):
        find_codec("blockwise8").check(parts, ArrayType("float32", (8,)))


@pytest.mark.parametrize("argument", ["0", "1", "63.5", "65537", "-4", "101", "٤"])
def test_a_block_that_makes_no_sense_is_refused(argument):
    with pytest.raises(ValueError, match="blockwise8 takes"):
        find_codec(f"blockwise8:{argument}")
