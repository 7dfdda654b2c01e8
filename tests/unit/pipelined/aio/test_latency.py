"""What was seen says how long is too long, and nobody is late before a lease would end."""

import pytest

from pipelined.aio.latency import DEVIATIONS, ENOUGH, KEPT, MULTIPLE, Patience


def seen(least, *seconds):
    patience = Patience(least)
    for each in seconds:
        patience.observe(each)
    return patience


def test_nobody_is_late_before_enough_was_seen():
    assert seen(1.0, *[0.1] * (ENOUGH - 1)).limit is None
    assert seen(1.0, *[0.1] * ENOUGH).limit is not None


def test_nobody_is_late_before_his_lease_would_end():
    assert seen(3.0, *[0.1] * ENOUGH).limit == 3.0


def test_steady_answers_are_waited_for_several_times_as_long():
    assert seen(0.0, *[2.0] * ENOUGH).limit == MULTIPLE * 2.0


def test_scattered_answers_are_waited_for_by_their_scatter():
    assert seen(0.0, 1.0, 1.0, 5.0, 9.0, 9.0).limit == pytest.approx(5.0 + DEVIATIONS * 4.0)


def test_one_late_answer_changes_nothing():
    assert seen(0.0, *[2.0] * 10, 1000.0).limit == MULTIPLE * 2.0


def test_the_old_is_forgotten():
    assert seen(0.0, *[100.0] * KEPT, *[1.0] * KEPT).limit == MULTIPLE
