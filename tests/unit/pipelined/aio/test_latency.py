"""Time-outs follow measured replies: the known answers of RFC 6298, and medians that no lease is shorter than."""

import pytest

from pipelined.aio.latency import (
    DEVIATIONS,
    FIRST_TIMEOUT_S,
    MEDIANS,
    MIN_SAMPLES,
    MIN_TIMEOUT_S,
    SAMPLES,
    Average,
    Backoff,
    RoundTrip,
    TimeoutEstimator,
)


def seen(least, *seconds):
    estimator = TimeoutEstimator(least)
    for each in seconds:
        estimator.observe(each)
    return estimator


def test_no_reply_is_late_before_enough_were_measured():
    assert seen(1.0, *[0.1] * (MIN_SAMPLES - 1)).timeout is None
    assert seen(1.0, *[0.1] * MIN_SAMPLES).timeout is not None


def test_no_reply_is_late_before_a_lease_would_end():
    assert seen(3.0, *[0.1] * MIN_SAMPLES).timeout == 3.0


def test_steady_answers_are_waited_for_several_times_as_long():
    assert seen(0.0, *[2.0] * MIN_SAMPLES).timeout == MEDIANS * 2.0


def test_scattered_answers_are_waited_for_by_their_scatter():
    assert seen(0.0, 1.0, 1.0, 5.0, 9.0, 9.0).timeout == pytest.approx(5.0 + DEVIATIONS * 4.0)


def test_one_late_answer_changes_nothing():
    assert seen(0.0, *[2.0] * 10, 1000.0).timeout == MEDIANS * 2.0


def test_the_old_is_forgotten():
    assert seen(0.0, *[100.0] * SAMPLES, *[1.0] * SAMPLES).timeout == MEDIANS


def test_a_limit_stays_a_number_however_many_replies_were_late():
    unmeasured = TimeoutEstimator(1.0)
    assert unmeasured.timeout_after(3) == 8 * unmeasured.timeout_after(0)
    assert unmeasured.timeout_after(1023) <= unmeasured.timeout_after(5000) < float("inf")


def timeout_after(*seconds):
    round_trip = RoundTrip()
    for each in seconds:
        round_trip.add(each)
    return round_trip.timeout


def test_the_first_time_out_before_any_reply():
    assert timeout_after() == FIRST_TIMEOUT_S


@pytest.mark.parametrize(
    "seen, timeout", [((1.0,), 1 + 4 * 0.5), ((1.0, 2.0), 1.125 + 4 * 0.625), ((0.001,), MIN_TIMEOUT_S)]
)
def test_the_time_out_is_the_mean_and_four_variations_and_never_below_the_least(seen, timeout):
    assert timeout_after(*seen) == pytest.approx(timeout)


@pytest.mark.parametrize("smoothing", [0.1, 0.5, 1.0])
def test_an_average_has_weights_that_fall_by_the_smoothing_and_add_up_to_one(smoothing):
    average, values = Average(smoothing), [3.0, 1.0, 4.0, 1.0, 5.0]
    assert average.value is None
    for value in values:
        average.add(value)
    weights = [(1 - smoothing) ** age for age in reversed(range(len(values)))]
    assert average.value == pytest.approx(sum(map(float.__mul__, weights, values)) / sum(weights))


@pytest.mark.parametrize("first, most", [(0.1, 10.0), (1.0, 1.0), (0.3, 1.0)])
def test_pauses_double_up_to_the_longest(first, most):
    backoff = Backoff(first, most)
    assert [backoff.next() for _ in range(12)] == [min(first * 2**attempt, most) for attempt in range(12)]


@pytest.mark.parametrize("first, most", [(0.0, 1.0), (1.0, 0.5)])
def test_pauses_that_cannot_grow_are_refused(first, most):
    with pytest.raises(ValueError, match="cannot grow"):
        Backoff(first, most)
