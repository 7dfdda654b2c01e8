"""A dropout's mask is a hash of the element's index; the oracle is the same hash in Python's integers."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelined.random.keyed_random import KeyedRandom
from pipelined.random.mask import CHUNK, _split_mix_64, dropout_of_piece, keep_mask
from pipelined.sharding import Mesh, Shards

CPU = torch.device("cpu")


def whole_mask(key, p, shape):
    return keep_mask(p, key, shape, [((0, size),) for size in shape], CPU)


def split_mix_64(state):
    """One step of SplitMix64, as its authors print it."""
    z = state = (state + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return state, z ^ z >> 31


def kept(key, p, row, column):
    """Whether an element is kept, in integers without a sign."""
    for _ in range(row + 1):
        key, word = split_mix_64(key)
    x = (column + word) % 2**32
    x = ((x ^ x >> 16) * 0x7FEB352D + (word >> 32)) % 2**32
    x = (x ^ x >> 15) * 0x846CA68B % 2**32
    return (x + 2**31) % 2**32 >= round(p * 2**32)


def test_the_words_of_rows_are_those_of_split_mix_64():
    """The first words of the seed 1234567, as printed in the generator's reference tables."""
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    words = _split_mix_64(1234567, torch.arange(5))
    assert [word % 2**64 for word in words.tolist()] == known


@pytest.mark.parametrize("p", [0.0, 1e-12, 0.1, 0.5, 0.999, 1 - 2**-53])
def test_each_element_is_the_hash_of_its_index(p):
    key = 0x7EDCBA9876543210
    expected = [[kept(key, p, row, column) for column in range(29)] for row in range(15)]
    assert whole_mask(key, p, (3, 5, 29)).tolist() == [expected[0:5], expected[5:10], expected[10:15]]


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=4),
    st.sampled_from(["B", "S0:a", "S0:b S0:a", "S0/3:b", "S0/2:a"]),
    st.integers(0, 2**63 - 1),
)
def test_dropout_of_a_shard_is_the_shard_of_the_dropout(shape, layout, key):
    random, x = KeyedRandom(1, 2, key), torch.ones(shape)
    whole = random.dropout(x, 0.5, "h.0")
    for words in (layout, layout.replace("0", str(len(shape) - 1))):
        shards = Shards(Mesh("a=2 b=3"), shape, words)
        for rank in range(6):
            found = dropout_of_piece(shards.local(x, rank), 0.5, random.key("h.0"), shape, shards.pieces(rank))
            assert torch.equal(found, shards.local(whole, rank))


def test_rows_hashed_in_several_chunks_are_the_rows_of_one():
    columns = 1 << 12
    rows = 2 * CHUNK["cpu"] // columns + 3
    mask = whole_mask(5, 0.5, (rows, columns))
    for row in (0, rows // 2, rows - 1):
        assert torch.equal(mask[row], keep_mask(0.5, 5, (rows, columns), [((row, row + 1),), ((0, columns),)], CPU)[0])


def test_a_single_element_of_a_tensor_beyond_memory_has_a_mask():
    piece = [((2**40 - 1, 2**40),), ((2**30, 2**30 + 8),)]
    assert keep_mask(0.0, 5, (2**40, 2**31 - 1), piece, CPU).tolist() == [[True] * 8]


SIDE = 1024
"""A tensor of 2**20 elements: a share's deviation is at most 0.0005."""


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_the_share_that_is_dropped_is_p_in_the_whole_and_along_both_dimensions(p):
    dropped = ~whole_mask(77, p, (SIDE, SIDE))
    assert abs(float(dropped.float().mean()) - p) < 5 * math.sqrt(p * (1 - p)) / SIDE
    for dimension in (0, 1):
        counts = dropped.sum(dimension).double()
        chi_square = float(((counts - SIDE * p) ** 2).sum()) / (SIDE * p * (1 - p))
        assert abs(chi_square - SIDE) < 5 * math.sqrt(2 * SIDE)


@pytest.mark.parametrize("shift", [(0, 1), (1, 0), (1, 1), (1, -1), (0, 2), (0, 32), (0, 256), (32, 0), (256, 0)])
def test_neighbours_in_a_tensor_are_not_correlated(shift):
    mask = whole_mask(78, 0.5, (SIDE, SIDE)).float() - 0.5
    moved = mask.roll(shift, (0, 1))
    assert abs(float((mask * moved).mean())) * 4 < 5 / SIDE


def test_bytes_of_neighbouring_elements_are_spread_evenly():
    """Eight neighbours are one of 256 patterns; chi-square with 255 degrees of freedom."""
    for mask in (whole_mask(79, 0.5, (SIDE, SIDE)), whole_mask(79, 0.5, (SIDE, SIDE)).T.contiguous()):
        patterns = (mask.view(-1, 8).int() << torch.arange(8, dtype=torch.int32)).sum(1)
        counts = torch.bincount(patterns, minlength=256).double()
        expected = SIDE * SIDE / 8 / 256
        chi_square = float(((counts - expected) ** 2 / expected).sum())
        assert abs(chi_square - 255) < 5 * math.sqrt(2 * 255)


def test_keys_that_differ_by_one_bit_or_by_a_step_give_uncorrelated_masks():
    others = [KeyedRandom(*key) for key in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]]
    ones = torch.ones(256, 1024)
    masks = [random.dropout(ones, 0.5, "h.0") - 1.0 for random in others]
    masks += [others[0].dropout(ones, 0.5, "h.1") - 1.0]
    masks += [2.0 * whole_mask(key, 0.5, (256, 1024)) - 1.0 for key in [0, *(1 << bit for bit in range(0, 63, 6))]]
    rows = torch.stack([mask.flatten() for mask in masks])
    assert (torch.corrcoef(rows) - torch.eye(len(rows))).abs().max() < 5 / 512
