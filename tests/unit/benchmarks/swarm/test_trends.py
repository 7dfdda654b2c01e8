"""Curves of known shapes say what is known of them, and a trend that is not there is said not to hold."""

from dataclasses import replace

import pytest

from benchmarks.swarm.account import BINS, Account
from benchmarks.swarm.trends import Curve, curve, trends

HOURS = 8


def account(share):
    """Eight hours of a hundred peer-seconds every five minutes, of which a share (by hour) was done."""
    done = [100 * share(at / BINS) for at in range(HOURS * BINS)]
    return Account(done, [100.0] * len(done), moves=4)


STEADY, FALLING = account(lambda hour: 0.9), account(lambda hour: 0.9 - 0.05 * hour)


def test_a_straight_decline_has_its_slope_and_never_rises():
    seen = curve(4, False, [FALLING, FALLING], [STEADY, STEADY], 1.0)
    assert seen.slope == pytest.approx(-5.0) and seen.rises == 0 and seen.ahead == 0.0
    assert seen.overall == pytest.approx(90 - 5 * (HOURS - 1 / BINS) / 2)
    assert seen.parts == pytest.approx([90 - 5 * (hour + 0.5 - 0.5 / BINS) for hour in range(HOURS)])
    assert (seen.moves, seen.seconds) == (4, 1.0)


def test_a_slump_that_is_over_in_an_hour_is_half_regained_over_two():
    slump = account(lambda hour: 0.5 if 1 <= hour < 2 else 1.0)
    assert curve(4, True, [slump], [STEADY], 0.0).regained == pytest.approx(100 * (24 - 11) / 24)
    assert curve(4, True, [STEADY], [STEADY], 0.0).regained == pytest.approx(0.0)


def test_one_is_ahead_for_as_long_as_it_does_more():
    better = account(lambda hour: 0.95 if hour >= 6 else 0.5)
    assert curve(4, False, [better, FALLING], [STEADY, STEADY], 0.0).ahead == pytest.approx(12.5)


def pair(stages, left, moved, slopes=(-2.0, -0.5)):
    """Both strategies at a number of stages, as the paper has them but for what is given."""
    common = Curve(stages, False, left, (), slopes[0], 3, 10.0, 1.0, 0.0, 1.0)
    return common, replace(common, rebalanced=True, overall=moved, slope=slopes[1], rises=9, regained=40.0)


def held(*curves):
    return [each.holds for each in trends(curves)]


def test_the_paper_s_figure_has_its_trends():
    assert held(*pair(4, 80.0, 95.0), *pair(8, 70.0, 90.0)) == [True] * 5


@pytest.mark.parametrize(
    "curves, missing",
    [
        ((*pair(4, 80.0, 95.0), *pair(8, 81.0, 90.0)), 0),
        ((*pair(4, 80.0, 95.0), *pair(8, 70.0, 96.0)), 0),
        ((*pair(4, 80.0, 95.0), *pair(8, 70.0, 69.0)), 1),
        ((*pair(4, 80.0, 95.0), *pair(8, 70.0, 90.0, slopes=(-0.9, -0.5))), 2),
        (pair(4, 80.0, 95.0, slopes=(1.0, 2.0)), 2),
    ],
)
def test_a_trend_that_is_not_there_is_missed(curves, missing):
    assert [at for at, holds in enumerate(held(*curves)) if not holds] == [missing]
