"""Weighted least squares, against lines that are known and intervals from tables."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelined.measurement.fit import Sample, fit, student_quantile


def line(sizes, alpha, beta, noise=0.0):
    random = np.random.default_rng(0)
    return [
        Sample((1.0, float(size)), tuple((alpha + beta * size) * (1 + noise * random.standard_normal(9))))
        for size in sizes
    ]


@given(st.floats(1e-6, 1e-2), st.floats(1e-12, 1e-8))
def test_a_line_without_noise_is_found_exactly(alpha, beta):
    fitted = fit(line([2**10, 2**16, 2**20, 2**22], alpha, beta))
    assert fitted.values == pytest.approx((alpha, beta), rel=1e-6)


@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_the_interval_holds_the_truth(noise):
    fitted = fit(line([2**10, 2**14, 2**18, 2**20, 2**22], 1e-4, 1e-9, noise))
    for value, margin, truth in zip(fitted.values, fitted.margins, (1e-4, 1e-9), strict=True):
        assert abs(value - truth) <= margin < value


def test_a_sample_weighs_by_its_error():
    """Two contradicting measurements of one number: nine that agree outweigh nine that are all over the place."""
    narrow, wide = Sample((1.0,), (2.0,) * 9), Sample((1.0,), tuple(range(1, 10)))
    assert fit([narrow, wide]).values[0] == pytest.approx(2.0, abs=0.01)


def test_without_weights_all_samples_count_alike():
    narrow, wide = Sample((1.0,), (2.0,) * 9), Sample((1.0,), tuple(range(1, 10)))
    assert fit([narrow, wide], weighted=False).values[0] == pytest.approx((2 + 5) / 2)


def test_no_cost_is_negative_and_the_others_are_found_without_it():
    """Shorter messages took longer: the line through them would have a negative slope."""
    fitted = fit([Sample((1.0, 0.0), (3.0,) * 3), Sample((1.0, 1.0), (1.0,) * 3)])
    assert fitted.values[1] == 0.0 and 1.0 <= fitted.values[0] <= 3.0


def test_as_many_samples_as_unknowns_say_nothing_of_the_error():
    fitted = fit([Sample((1.0, 1.0), (3.0,)), Sample((1.0, 2.0), (5.0,))])
    assert fitted.values == pytest.approx((1.0, 2.0))
    assert fitted.margins == (math.inf, math.inf)
    assert fitted.to_dict("alpha", "beta")["alpha"][1] is None


def test_a_number_that_no_sample_has_is_0():
    assert fit([Sample((1.0, 0.0), (2.0,) * 3)] * 3).values == (pytest.approx(2.0), 0.0)


def test_samples_of_different_numbers_are_refused():
    with pytest.raises(ValueError, match=r"counts: \[1, 2\]"):
        fit([Sample((1.0,), (1.0,)), Sample((1.0, 2.0), (1.0,))])


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (100, 1.984)]
)
def test_quantiles_are_those_of_the_tables(freedom, quantile):
    assert student_quantile(freedom) == pytest.approx(quantile, rel=0.01)
