"""The grid of exact sums: what is rounded to it sums to one number in every order and every split among ranks."""

import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelined.programs.plan import Plan
from pipelined.programs.updates.exact_grid import HEADROOM, Grid, require_exact

FINITE = st.floats(-(2.0**100), 2.0**100, width=32)


def on_grid(grid, number):
    return (number + grid.rounding) - grid.rounding


def exact(grid, numbers):
    """The sum of these numbers, each rounded to the grid, in rational arithmetic."""
    spacing = Fraction(2) ** grid.exponent
    return sum((round(Fraction(number) / spacing) * spacing for number in numbers), Fraction())


@given(st.lists(FINITE, min_size=1, max_size=40), st.randoms(use_true_random=False), st.integers(1, 5))
@settings(max_examples=100, deadline=None)
def test_random_splits_and_orders_give_one_sum(numbers, chance: random.Random, ranks):
    grid = Grid.for_sums(max(map(abs, numbers)), len(numbers))
    expected = exact(grid, numbers)
    for _ in range(3):
        chance.shuffle(numbers)
        parts = [0.0] * ranks
        for number in numbers:
            parts[chance.randrange(ranks)] += on_grid(grid, number)
        chance.shuffle(parts)
        assert Fraction(sum(parts)) == expected


@given(st.floats(2.0**-126, 2.0**120), st.integers(1, 1 << 20))
def test_a_grid_holds_what_it_is_made_for_grown_by_its_headroom_and_no_more(largest, summands):
    grid = Grid.for_sums(largest, summands)
    assert grid.holds(largest, summands) and grid.holds(largest * 2**HEADROOM, summands) and grid.holds(0.0, summands)
    assert not grid.holds(largest * 2 ** (HEADROOM + 1), summands)


def test_a_sum_of_as_many_of_the_largest_as_a_grid_holds_is_exact_at_every_partial_sum():
    grid = Grid.for_sums(1.0, 1000)
    largest = np.nextafter(2.0 ** (HEADROOM + 1), 0.0)
    total, spacing = Fraction(), Fraction(2) ** grid.exponent
    added = 0.0
    for _ in range(1000):
        total += round(Fraction(largest) / spacing) * spacing
        added += on_grid(grid, float(largest))
        assert Fraction(added) == total


def test_the_error_of_a_sum_is_smaller_than_that_of_float32():
    draws = np.random.default_rng(0).standard_normal((64, 1000)).astype(np.float32) * 1e-3
    truth = draws.astype(np.float64).sum(0)
    in_float32 = np.abs(np.add.reduce(draws, 0) - truth).mean()
    grid = Grid.for_sums(float(np.abs(draws).max()), 64)
    rounded = (draws.astype(np.float64) + grid.rounding - grid.rounding).sum(0).astype(np.float32)
    assert np.abs(rounded - truth).mean() < 0.5 * in_float32


@pytest.mark.parametrize(
    ("plan", "codec", "fact"),
    [
        (Plan("one_f_one_b", 2, 1, 2, 2), "bf16", "codec: bf16.*`compress=none`"),
        (Plan("pipedream", 2, 1, 2, 2), "none", "pipedream updates a stage between.*`schedule=one_f_one_b`"),
        (Plan("chimera", 2, 1, 2, 4, {"scale": "forward-doubling"}), "none", "forward-doubling.*`scale=direct`"),
    ],
)
def test_what_would_depend_on_the_arrangement_is_refused(plan, codec, fact):
    with pytest.raises(ValueError, match=fact):
        require_exact(plan, codec)
