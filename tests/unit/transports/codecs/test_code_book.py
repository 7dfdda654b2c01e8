"""The code book has the values it is known to have, and every float32 gets the nearest of them."""

import sys

import numpy as np
import pytest
import torch  # noqa: F401 (it is looked for among what is loaded)

from transports.codecs.blockwise8 import quantise
from transports.codecs.code_book import ZERO, PairLookUp, cell_table, code_book, pair_table


def nearest(values):
    """The distance to the nearest code, by a search in float64."""
    book = code_book().astype(float)
    above = np.clip(np.searchsorted(book, values), 1, 255)
    return np.minimum(abs(values - book[above - 1]), abs(values - book[above]))


def assert_nearest(values):
    """Code values between -1 and 1 in blocks that each end with a 1, and see that no other code is nearer."""
    blocks = np.ones((-(-values.size // 65535), 65536), np.float32)
    blocks[:, :-1].flat[: values.size] = values
    codes, scales = quantise(blocks.ravel(), 65536)
    assert (scales == 1).all()
    exact = blocks.ravel().astype(float)
    assert (abs(code_book().astype(float)[codes] - exact) == nearest(exact)).all()


def test_the_code_book_is_the_known_one():
    book = code_book()
    assert book.dtype == np.float32 and len(set(book.tolist())) == 256 and (np.diff(book) > 0).all()
    assert book[ZERO] == 0 and book[255] == 1
    assert book[:3] == pytest.approx([-0.99296875, -0.97890625, -0.96484375])
    assert book[ZERO + 1 : ZERO + 4] == pytest.approx([5.5e-7, 3.25e-6, 7.75e-6])
    assert (book[1:ZERO] == -book[ZERO + 1 : 254][::-1]).all()


def test_no_cell_holds_two_steps():
    middles = (code_book()[:-1].astype(float) + code_book()[1:]) / 2
    cells = middles.astype(np.float32).view(np.uint32) >> 16
    assert len(set(cells.tolist())) == 255


def test_every_cell_gives_the_nearest_code_at_its_ends_and_on_both_sides_of_its_step():
    """A cell's codes are a step function of its lower bits, so these few values stand for all of them."""
    cells = np.arange(1 << 16, dtype=np.uint32)
    steps = 0x10000 - (cell_table() & 0xFFFF)
    lows = (np.zeros_like(cells), np.full_like(cells, 0xFFFF), steps - 1, np.minimum(steps, 0xFFFF))
    values = np.concatenate([(cells << 16) + low for low in lows]).view(np.float32)
    with np.errstate(invalid="ignore"):
        assert_nearest(values[abs(values) <= 1])


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_every_float32_between_minus_one_and_one_gets_the_nearest_code():
    for first in range(0, 0x3F800001, 1 << 22):
        magnitudes = np.arange(first, min(first + (1 << 22), 0x3F800001), dtype=np.uint32).view(np.float32)
        assert_nearest(magnitudes)
        assert_nearest(-magnitudes)


def test_a_pair_of_codes_gives_both_values():
    pairs = pair_table().view(np.float32).reshape(256, 256, 2)
    high, low = np.meshgrid(code_book(), code_book(), indexing="ij")
    assert (pairs[..., 0] == low).all() and (pairs[..., 1] == high).all()


@pytest.mark.parametrize("way", ["with torch", "without torch"])
def test_torch_and_numpy_look_up_the_same_pairs(way, monkeypatch):
    if way == "without torch":
        monkeypatch.delitem(sys.modules, "torch")
    codes = np.arange(1 << 16, dtype=np.uint16)
    values = np.empty(1 << 17, np.float32)
    PairLookUp(codes.size)(codes.view(np.uint8), values)
    assert (values == code_book()[codes.view(np.uint8)]).all()
