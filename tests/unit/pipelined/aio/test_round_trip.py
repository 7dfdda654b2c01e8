"""Known answers of RFC 6298: the first sample, then 1/8 and 1/4 of each difference."""

import pytest

from pipelined.aio.round_trip import FIRST_S, LEAST_S, RoundTrip


def silence_after(*seconds):
    round_trip = RoundTrip()
    for each in seconds:
        round_trip.add(each)
    return round_trip.silence


def test_nothing_seen_yet():
    assert silence_after() == FIRST_S


@pytest.mark.parametrize("seen, silence", [((1.0,), 1 + 4 * 0.5), ((1.0, 2.0), 1.125 + 4 * 0.625), ((0.001,), LEAST_S)])
def test_the_mean_and_four_variations_but_no_less_than_processes_are_late(seen, silence):
    assert silence_after(*seen) == pytest.approx(silence)
