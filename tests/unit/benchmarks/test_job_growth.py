"""No rank of a job says more than a tree or a doubling needs before and in its first step, rank 0 included."""

from math import log2

import pytest

from benchmarks.job_growth import exponents, measure

FEW, MANY = 16, 64


@pytest.fixture(scope="module")
def sizes():
    return [measure(ranks) for ranks in (FEW, MANY)]


@pytest.mark.parametrize("phase", ["together", "first sum", "sum"])
def test_the_messages_of_any_one_rank_grow_as_the_logarithm_of_the_ranks(sizes, phase):
    for size in sizes:
        assert size.phases[phase]["messages_0"] <= size.phases[phase]["most_messages"] <= 2 * log2(size.ranks)


def test_an_agreement_costs_all_ranks_together_as_many_messages_as_there_are_ranks_twice(sizes):
    assert [size.phases["together"]["messages"] for size in sizes] == [2 * (ranks - 1) for ranks in (FEW, MANY)]
    assert exponents(sizes, "together", "messages") == [pytest.approx(1.03, abs=0.05)]


def test_what_a_rank_sends_of_the_step_totals_grows_no_faster_than_the_losses_in_it(sizes):
    (grown,) = exponents(sizes, "sum", "most_bytes")
    assert grown < 1.0
