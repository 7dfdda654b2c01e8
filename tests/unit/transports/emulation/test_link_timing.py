"""Moments on a slow link, against what can be written down by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transports.emulation.link_timing import LinkTiming, Passage, retransmission_timeout
from transports.emulation.options import LinkProfile


def link(**profile):
    return LinkTiming(LinkProfile(**profile), (0, 1))


def test_a_message_leaves_after_its_bytes_and_arrives_a_delay_later():
    assert link(delay=2.0, rate=10.0).passage(5.0, 30) == Passage(departure=8.0, arrival=10.0)


def test_messages_leave_one_after_another_and_their_delays_overlap():
    slow = link(delay=2.0, rate=10.0)
    assert [slow.passage(0.0, 10) for _ in range(3)] == [Passage(1.0, 3.0), Passage(2.0, 4.0), Passage(3.0, 5.0)]
    assert slow.passage(100.0, 10) == Passage(101.0, 103.0)


def test_without_a_rate_size_does_not_matter():
    assert link(delay=2.0).passage(5.0, 1 << 40) == Passage(5.0, 7.0)


class Drawn:
    """A random source that says what it is told."""

    def __init__(self, fractions, spread):
        self._fractions, self._spread = iter(fractions), spread

    def random(self):
        return next(self._fractions)

    def uniform(self, low, high):
        return (low + high) / 2 + self._spread * (high - low) / 2


@pytest.mark.parametrize("losses", range(6))
@pytest.mark.parametrize("spread", [-1.0, 0.0, 0.25, 1.0])
def test_each_draw_costs_exactly_the_closed_form(losses, spread, monkeypatch):
    """With k losses of chance p^k (1 - p), and spreads that are even, the means are exactly those of the law."""
    profile = LinkProfile(delay=0.25, jitter=0.125, loss=0.5)
    drawn = Drawn([0.4999] * losses + [0.5], spread)
    monkeypatch.setattr("transports.emulation.link_timing.random.Random", lambda seed: drawn)
    passage = LinkTiming(profile, (0, 1)).passage(8.0, 0)
    assert passage.arrival - passage.departure == 0.25 + 0.125 * spread + (2**losses - 1) * retransmission_timeout(
        profile
    )


def test_thousands_of_losses_in_a_row_still_end():
    slow = link(loss=0.999)
    arrivals = [slow.passage(0.0, 1).arrival for _ in range(20)]
    assert arrivals == sorted(arrivals) and arrivals[-1] < float("inf")


def test_a_time_out_is_a_round_trip_and_four_variations_or_a_fifth_of_a_second():
    assert retransmission_timeout(LinkProfile(delay=0.05)) == pytest.approx(0.3)
    assert retransmission_timeout(LinkProfile(delay=0.1, jitter=0.1)) == pytest.approx(0.6)


@given(
    st.lists(st.tuples(st.floats(0, 10), st.integers(0, 1000)), max_size=30),
    st.floats(0, 3),
    st.floats(0, 0.9),
    st.integers(0, 9),
)
def test_order_is_kept_and_nothing_comes_before_it_has_left(sends, delay, loss, seed):
    slow, now, before = link(delay=delay, jitter=delay, rate=500.0, loss=loss, seed=seed), 0.0, Passage(0.0, 0.0)
    for pause, nbytes in sends:
        now += pause
        passage = slow.passage(now, nbytes)
        assert passage.departure >= max(now, before.departure) + nbytes / 500.0 * (1 - 1e-9)
        assert passage.arrival >= max(passage.departure, before.arrival)
        before = passage


def test_losses_depend_on_the_seed_and_the_ends():
    def story(seed, ends):
        slow = LinkTiming(LinkProfile(delay=1.0, jitter=1.0, loss=0.5, seed=seed), ends)
        return [slow.passage(0.0, 1) for _ in range(20)]

    assert story(1, (0, 1)) == story(1, (0, 1))
    assert story(1, (0, 1)) != story(2, (0, 1))
    assert story(1, (0, 1)) != story(1, (1, 0))
