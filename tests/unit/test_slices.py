"""Slices of the large grids: together they are the whole, none overlaps another, and all are equally large."""

import argparse
from dataclasses import dataclass

import pytest

from tests.slices import Choice, Slice

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


@pytest.mark.parametrize("turns", [2, 3, 4])
def test_as_many_runs_in_a_row_as_there_are_turns_take_every_case_once(turns):
    runs = [Slice(number, 400).every(turns) for number in range(17, 17 + turns)]
    assert all(sum(run.takes("tests/unit/test_grid.py::test_a_case", case) for run in runs) == 1 for case in CASES)


@pytest.mark.parametrize("turn", range(5))
def test_the_runs_that_a_case_with_turns_begins_take_every_slice(turn):
    slices = [Slice(number, 400) for number in range(400)]
    assert [each.beneath(5) for each in slices if each.every(5).number == turn] == [Slice(n, 80) for n in range(80)]


class Case:
    """A case as pytest has it, with one marker or none."""

    def __init__(self, number, marker=None, *args):
        self.nodeid, self._marker, self._mark = f"tests/unit/test_grid.py::test_a_case[{number}]", marker, Mark(args)

    def get_closest_marker(self, name):
        return self._mark if name == self._marker else None


@dataclass
class Mark:
    args: tuple


@pytest.mark.parametrize(
    ("full", "part", "taken"),
    [(False, None, (12, 0, 12)), (True, None, (12, 12, 12)), (False, Slice(7, 12), (12, 1, 3))],
)
def test_a_run_takes_what_is_not_marked_and_its_part_of_what_is(full, part, taken):
    markers = ((), ("full",), ("in_turns", 4))
    for marker, number in zip(markers, taken, strict=True):
        choice = Choice(full, part)
        assert sum(not choice.leaves_out(Case(case, *marker)) for case in range(12)) == number


def test_a_slice_reads_what_it_prints():
    assert Slice.parse(str(Slice(3, 70))) == Slice(3, 70)


@pytest.mark.parametrize("text", ["", "3", "70/70", "-1/70", "a/b", "0/0", "1/2/3"])
def test_an_invalid_slice_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="a slice is K/N"):
        Slice.parse(text)
