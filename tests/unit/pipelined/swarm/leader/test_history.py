"""What a leader remembers of members that failed: partners, evictions, and for how long."""

import pytest

from pipelined.swarm.leader import history
from pipelined.swarm.leader.history import FORGIVEN_STEPS, History


def pauses(past, name, count, lease_s=1.0):
    return [past.evict(name, 0, lease_s)[1] for _ in range(count)]


def test_each_pause_is_twice_the_last_up_to_the_longest():
    assert pauses(History(), "a", 11) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert pauses(History(), "a", 2, lease_s=400.0) == [400, 400]


def test_another_leader_goes_on_from_what_the_directory_has():
    past = History()
    assert past.evict("a", 3, 1.0) == (4, 8.0)
    assert past.evict("a", 3, 1.0) == (5, 16.0)
    assert past.evict("b", 10**18, 1.0)[1] == 300.0


def test_each_partner_counts_once_and_a_member_that_failed_by_itself_has_none():
    past = History()
    past.failed([{"a", "b"}, {"a", "b"}, {"a", "c"}, {"d"}])
    assert past.partners == {"a": 2, "b": 1, "c": 1, "d": 0}


@pytest.mark.parametrize("again", ["failed", "evict"])
def test_a_member_is_forgiven_after_so_many_steps_with_others_and_none_since_its_last_failure(again):
    past = History()
    past.failed([{"a", "b"}])
    for _ in range(FORGIVEN_STEPS - 1):
        past.summed([["a", "b"], ["c"]])
    past.failed([{"a", "c"}]) if again == "failed" else past.evict("a", 0, 1.0)
    past.summed([["a", "b"], ["c"]])
    assert past.remembers("a") and not past.remembers("b")
    for _ in range(FORGIVEN_STEPS - 1):
        past.summed([["a", "b"], ["c"]])
    assert not past.remembers("a") and past.evict("a", 0, 1.0) == (1, 1.0)


def test_steps_that_a_member_takes_alone_forgive_nothing():
    past = History()
    past.failed([{"a", "b"}])
    for _ in range(2 * FORGIVEN_STEPS):
        past.summed([["a"], ["b"]])
    assert past.partners == {"a": 1, "b": 1}


def test_the_oldest_names_are_forgotten(monkeypatch):
    monkeypatch.setattr(history, "MOST_NAMES", 3)
    past = History()
    for name in "abcd":
        past.evict(name, 0, 1.0)
    assert [past.remembers(name) for name in "abcd"] == [False, True, True, True]
