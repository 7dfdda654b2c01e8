"""Slices of the large grids: together they are the whole, none overlaps another, and all are equally large."""

import argparse

import pytest

from tests.slices import Slice

CASES = range(2000)


@pytest.mark.parametrize("test", ["tests/unit/test_grid.py::test_a_case", "tests/unit/test_grid.py::test_another"])
def test_every_case_is_in_exactly_one_slice_and_slices_differ_by_one_case_at_most(test):
    slices = [[case for case in CASES if Slice(number, 70).takes(test, case)] for number in range(70)]
    assert sorted(case for one in slices for case in one) == list(CASES)
    assert {len(one) for one in slices} == {28, 29}


def test_the_only_cases_of_many_tests_are_spread_over_the_slices():
    parts = [Slice(number, 10) for number in range(10)]
    sizes = [sum(part.takes(f"tests/unit/test_grid.py::test_{case}", 0) for case in CASES) for part in parts]
    assert 150 < min(sizes) <= max(sizes) < 250, sizes


def test_a_slice_reads_what_it_prints():
    assert Slice.parse(str(Slice(3, 70))) == Slice(3, 70)


@pytest.mark.parametrize("text", ["", "3", "70/70", "-1/70", "a/b", "0/0", "1/2/3"])
def test_an_invalid_slice_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="a slice is K/N"):
        Slice.parse(text)
