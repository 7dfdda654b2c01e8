"""Slices of the large grids: together they are the whole, and none overlaps another."""

import argparse

import pytest

from tests.slices import Slice

NAMES = [f"tests/unit/test_grid.py::test_a_case[{case}]" for case in range(2000)]


def test_every_name_is_in_exactly_one_slice():
    slices = [Slice(number, 70) for number in range(70)]
    assert all(sum(name in part for part in slices) == 1 for name in NAMES)


def test_slices_are_of_similar_size():
    sizes = [sum(name in Slice(number, 10) for name in NAMES) for number in range(10)]
    assert 150 < min(sizes) <= max(sizes) < 250, sizes


def test_a_slice_reads_what_it_prints():
    assert Slice.parse(str(Slice(3, 70))) == Slice(3, 70)


@pytest.mark.parametrize("text", ["", "3", "70/70", "-1/70", "a/b", "0/0", "1/2/3"])
def test_what_is_no_slice_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="a slice is K/N"):
        Slice.parse(text)
