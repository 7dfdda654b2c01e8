"""Which members withhold their part of a sum, from the replies of all."""

import pytest

from pipelined.swarm.leader import connectivity
from pipelined.swarm.leader.connectivity import FORGIVEN_STEPS, History, overdue
from pipelined.swarm.protocol.rounds import Reach


def said(parts=(), totals=()):
    return Reach((), dict(parts), dict(totals))


@pytest.mark.parametrize(
    "all_say, waits",
    [
        ({"a": said(), "b": said()}, {}),
        ({"a": said({"c": 11.0}), "b": said({"c": 11.0}), "c": said()}, {"a": "c", "b": "c"}),
        ({"a": said({"c": 9.0}), "b": said({"c": 11.0}), "c": said()}, {"b": "c"}),
        ({"a": said({}, {"b": 11.0}), "b": said({"c": 11.0}), "c": said({}, {"b": 11.0})}, {"b": "c"}),
        ({"a": said({}, {"b": 11.0}), "b": said({"c": 1.0}), "c": said()}, {}),
        ({"a": said({}, {"b": 11.0}), "b": said()}, {"a": "b"}),
        ({"a": said({}, {"b": 11.0})}, {}),
        ({"a": said({"slow": 15.0})}, {}),
        ({"a": said({"slow": 25.0})}, {"a": "slow"}),
    ],
    ids=[
        "none waits",
        "one withholds its part",
        "not for long",
        "an owner that lacks a part owes no total",
        "nor where it lacks it for a moment",
        "an owner withholds a total",
        "an owner that could not be asked",
        "a longer limit of its own",
        "over it",
    ],
)
def test_known_answers(all_say, waits):
    found = overdue(all_say, lambda name: 20.0 if name == "slow" else 10.0)
    assert {name: "".join(sorted(others)) for name, others in found.items() if others} == waits


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
    monkeypatch.setattr(connectivity, "MOST_NAMES", 3)
    past = History()
    for name in "abcd":
        past.evict(name, 0, 1.0)
    assert [past.remembers(name) for name in "abcd"] == [False, True, True, True]
