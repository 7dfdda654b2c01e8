"""What the leader remembers of members that failed, and when it forgets."""

import pytest

from pipelined.swarm.leader import failures
from pipelined.swarm.leader.failures import FORGIVEN_STEPS, EvictionHistory


def evict(past, name, known=0, lease_s=1.0):
    """Count an eviction that succeeded; returns how many in a row that makes, and the pause."""
    times, pause = past.next_eviction(name, known, lease_s)
    past.record_evicted(name, times)
    return times, pause


def pauses(past, name, count, lease_s=1.0):
    return [evict(past, name, 0, lease_s)[1] for _ in range(count)]


def test_each_pause_is_twice_the_last_up_to_the_longest():
    assert pauses(EvictionHistory(), "a", 11) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert pauses(EvictionHistory(), "a", 2, lease_s=400.0) == [400, 400]


def test_another_leader_goes_on_from_what_the_directory_has():
    past = EvictionHistory()
    assert evict(past, "a", 3) == (4, 8.0)
    assert evict(past, "a", 3) == (5, 16.0)
    assert evict(past, "b", 10**18)[1] == 300.0


def test_each_partner_counts_once_and_a_member_that_failed_by_itself_has_none():
    past = EvictionHistory()
    past.record_failed([{"a", "b"}, {"a", "b"}, {"a", "c"}, {"d"}])
    assert past.partners == {"a": 2, "b": 1, "c": 1, "d": 0}


@pytest.mark.parametrize("again", ["failed", "evict"])
def test_a_member_is_forgiven_after_so_many_steps_with_others_and_none_since_its_last_failure(again):
    past = EvictionHistory()
    past.record_failed([{"a", "b"}])
    for _ in range(FORGIVEN_STEPS - 1):
        past.record_summed([["a", "b"], ["c"]])
    past.record_failed([{"a", "c"}]) if again == "failed" else evict(past, "a")
    past.record_summed([["a", "b"], ["c"]])
    assert past.remembers("a") and not past.remembers("b")
    for _ in range(FORGIVEN_STEPS - 1):
        past.record_summed([["a", "b"], ["c"]])
    assert not past.remembers("a") and evict(past, "a") == (1, 1.0)


def test_steps_that_a_member_takes_alone_forgive_nothing():
    past = EvictionHistory()
    past.record_failed([{"a", "b"}])
    for _ in range(2 * FORGIVEN_STEPS):
        past.record_summed([["a"], ["b"]])
    assert past.partners == {"a": 1, "b": 1}


def test_the_oldest_names_are_forgotten(monkeypatch):
    monkeypatch.setattr(failures, "MAX_NAMES", 3)
    past = EvictionHistory()
    for name in "abcd":
        evict(past, name)
    assert [past.remembers(name) for name in "abcd"] == [False, True, True, True]
