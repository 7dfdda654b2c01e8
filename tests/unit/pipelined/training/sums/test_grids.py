"""Grids of parameters: which summands fit, and what is added."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelined.programs.updates.exact_grid import HEADROOM, Grid
from pipelined.training.sums.grids import Grids


@pytest.fixture
def grids():
    result = Grids({"w": 4})
    result.adopt({"w": 1.5, "of another process": 3.0})
    return result


def test_a_grid_follows_from_the_largest_summand(grids):
    assert grids == {"w": Grid.for_sums(1.5, 4)}


def test_a_summand_is_rounded_to_the_grid_and_added(grids):
    spacing, sums = grids["w"].spacing, torch.zeros(3, dtype=torch.float64)
    summand = torch.tensor([1.0, -0.3, 2.6 * spacing], dtype=torch.float64)
    assert grids.add("w", summand, sums) == 1.0
    assert sums.tolist() == [1.0, round(-0.3 / spacing) * spacing, 3 * spacing]


@pytest.mark.parametrize("factor", [2.0 ** (HEADROOM + 1), math.inf, math.nan])
def test_a_summand_that_does_not_fit_is_left_out(grids, factor):
    sums = torch.zeros(2, dtype=torch.float64)
    largest = grids.add("w", torch.tensor([1.5 * factor, 1.0]), sums)
    assert not grids.holds("w", largest) and not sums.any()


def test_without_a_grid_only_zeros_fit():
    grids, sums = Grids({"w": 4}), torch.zeros(2, dtype=torch.float64)
    assert grids.holds("w", 0.0) and not grids.holds("w", grids.add("w", torch.ones(2), sums)) and not sums.any()


def test_a_parameter_without_a_finite_gradient_keeps_its_grid(grids):
    before = dict(grids)
    for largest in (0.0, math.inf, math.nan):
        grids.adopt({"w": largest})
    assert grids == before


def test_a_spacing_names_its_grid(grids):
    assert Grid.with_spacing(grids["w"].spacing) == grids["w"]


@given(
    st.lists(st.floats(-(2.0**60), 2.0**60, width=32), min_size=1, max_size=40),
    st.lists(st.integers(0, 40), max_size=4),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_the_squares_of_pieces_add_to_those_of_the_whole_wherever_it_is_cut(values, cuts, dtype):
    """A plain sum of squares is another one for another cut, so ranks that divide a parameter had another norm."""
    grids, sums = Grids({"w": 2}), torch.tensor(values, dtype=dtype)
    grids.adopt({"w": float(sums.abs().max())})
    bounds = sorted({0, len(values), *(min(cut, len(values)) for cut in cuts)})
    pieces = [grids.squares("w", sums[low:high], len(values)) for low, high in pairwise(bounds)]
    whole = grids.squares("w", sums, len(values))
    for order in (pieces, pieces[::-1]):
        assert tuple(sum(part, 0.0) for part in zip(*order, strict=True)) == whole
    assert sum(whole) == pytest.approx(math.fsum(float(value) ** 2 for value in sums), rel=1e-14, abs=1e-300)
    assert sums.tolist() == values


@pytest.mark.parametrize("spoilt", [math.inf, -math.inf, math.nan])
def test_squares_of_sums_that_are_not_finite_are_not_finite(grids, spoilt):
    assert not math.isfinite(sum(grids.squares("w", torch.tensor([1.0, spoilt]), 2)))


def test_squares_without_a_grid_are_those_of_zeros():
    assert Grids({"w": 4}).squares("w", torch.zeros(3), 3) == (0.0, 0.0)
