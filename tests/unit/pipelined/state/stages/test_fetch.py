"""Requests spread over the peers of a stage, each process in its own order, which joins and deaths do not change."""

from collections import Counter

from pipelined.state.stages.fetch import by_preference
from pipelined.swarm.records.members import PeerRecord, Phase


def peers(count):
    return [PeerRecord(f"p{at}", f"virtual://p{at}", at, 0, Phase.SERVING, "") for at in range(count)]


def test_askers_spread_evenly_over_the_peers():
    first = Counter(by_preference(f"asker{at}", peers(4))[0].name for at in range(400))
    assert len(first) == 4 and max(first.values()) < 130


def test_the_order_depends_on_the_names_alone():
    assert by_preference("a", peers(5)) == by_preference("a", reversed(peers(5)))


def test_a_peer_that_goes_changes_the_choice_of_those_that_preferred_it_alone():
    askers = [f"asker{at}" for at in range(100)]
    before = {asker: by_preference(asker, peers(4)) for asker in askers}
    for asker in askers:
        assert by_preference(asker, peers(3)) == [peer for peer in before[asker] if peer.name != "p3"]
