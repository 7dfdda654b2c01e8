"""What a swarm's directory is asked and tells grows with the members that something concerns, not with all of them.

Held by counts, which are the same on any machine: four times the members, in four times the stages.
"""

import pytest

from benchmarks.swarm_growth import busy_at, exponents, measure

FEW, MANY, WIDTH, TRAINERS = 50, 200, 8, 2


@pytest.fixture(scope="module")
def sizes():
    return [measure(members, WIDTH, TRAINERS) for members in (FEW, MANY)]


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("event", ["join", "death"])
@pytest.mark.parametrize("unit", ["messages", "bytes"])
def test_a_member_that_joins_or_dies_costs_the_same_however_many_there_are_elsewhere(sizes, event, unit):
    few, many = (getattr(size, event)[unit] for size in sizes)
    assert many < 1.1 * few


@pytest.mark.parametrize("phase", ["start", "quiet", "first", "commit", "change"])
@pytest.mark.parametrize("unit", ["messages", "bytes"])
def test_what_concerns_all_members_grows_as_their_number_does(sizes, phase, unit):
    (exponent,) = exponents(sizes, lambda size: getattr(size, phase)[unit])
    assert exponent < 1.2


def test_a_commit_with_the_same_members_as_before_reports_none_of_them(sizes):
    """Names, of which one part lies in each of so many keys, made its bytes grow faster than the members."""
    for size in sizes:
        assert size.commit["bytes"] < 700 * size.members
    (exponent,) = exponents(sizes, lambda size: size.commit["bytes"])
    assert exponent < 1.02


def test_a_trainer_costs_a_commit_no_more_than_a_peer():
    few, many = (measure(FEW + trainers, WIDTH, trainers) for trainers in (2, 10))
    for unit in ("messages", "bytes"):
        assert 1.0 < many.commit[unit] / few.commit[unit] < 1.01 * many.members / few.members


def test_a_start_of_many_at_once_is_reported_to_each_in_few_messages(sizes):
    for size in sizes:
        assert size.start["messages"] < 40 * size.members


def test_the_exponent_is_of_the_number_of_members(sizes):
    quadratic = [1.0 * size.members**2 for size in sizes]
    assert exponents(sizes, lambda size: quadratic[sizes.index(size)]) == pytest.approx([2.0])
    assert busy_at(sizes[1]) > MANY
