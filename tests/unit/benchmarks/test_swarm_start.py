"""Peers that start at once are one membership in a moment, spread evenly."""

from benchmarks.swarm_start import start


def test_peers_that_start_at_once_know_all_in_a_few_round_trips_and_are_spread_evenly():
    found = start(peers=14, stages=4)
    assert found.kept and found.spread == 1
    assert found.seconds < 0.1, "they waited for one another"
