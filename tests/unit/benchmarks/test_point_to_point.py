"""What is promised of messages over MPI, as rows judge it; the seconds here are made up."""

import pytest

from benchmarks.point_to_point import Beside, Options, Row, rows_of

US = 1e-6
BESIDE = Beside(16 << 20, (2e-3, 3e-3), (3e-3, 4e-3), (0.01, 0.03))


@pytest.mark.parametrize(
    ("nbytes", "road", "taken_us", "raw_us", "within"),
    [
        (8, "buffer", 4.9, 2.0, True),
        (8, "buffer", 5.1, 2.0, False),
        (4096, "message", 16.9, 2.0, True),
        (4096, "message", 17.1, 2.0, False),
        (4097, "message", 99.0, 2.0, True),
        (1 << 20, "message", 110.0, 100.0, True),
        (1 << 20, "buffer", 112.0, 100.0, False),
        (8, "raw", 2.0, 2.0, True),
    ],
)
def test_a_row_is_judged_by_what_is_promised_of_its_size(nbytes, road, taken_us, raw_us, within):
    assert Row(nbytes, road, (taken_us * US,), (raw_us * US,)).within is within


def test_differences_and_shares_are_taken_within_a_round():
    row = Row(100, "buffer", (10 * US, 40 * US, 60 * US), (5 * US, 20 * US, 15 * US))
    assert row.more_s == pytest.approx(20 * US) and row.share == pytest.approx(0.5)
    assert row.bandwidth == pytest.approx(100 / (40 * US))


def test_messages_beside_computing_may_take_two_milliseconds_more_and_three_percent_of_it():
    assert BESIDE.within and BESIDE.more_s == pytest.approx(1e-3) and BESIDE.lost_share == pytest.approx(0.02)
    assert not Beside(1, (1e-3,), (3.1e-3,), (0.0,)).within
    assert not Beside(1, (1e-3,), (1e-3,), (0.031,)).within


def test_every_size_has_a_row_for_each_road():
    taken = {8: {"raw": [1.0], "buffer": [2.0], "message": [4.0]}}
    assert [(row.road, row.share) for row in rows_of(taken)] == [("raw", 1.0), ("buffer", 0.5), ("message", 0.25)]


def test_large_bodies_go_there_and_back_at_least_twice():
    assert [Options(moved=1 << 20).turns(nbytes) for nbytes in (1, 1 << 18, 1 << 30)] == [200, 4, 2]
