"""Peers that start at once are one membership in a moment, spread evenly."""

from benchmarks.swarm_start import PROMISED_S, Start, start


def test_peers_that_start_at_once_know_all_in_a_few_round_trips_and_are_spread_evenly():
    found = start(peers=14, stages=4)
    assert found.kept and found.spread == 1
    assert found.seconds < 0.1, "they waited for one another"


def test_neither_late_nor_uneven_is_kept():
    assert Start(9, 3, PROMISED_S, 0.1, 1).kept
    assert not Start(9, 3, PROMISED_S + 0.1, 0.1, 1).kept and not Start(9, 3, 0.1, 0.1, 2).kept
