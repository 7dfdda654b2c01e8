"""Which members withhold their part of a sum, from the replies of all."""

import asyncio

import pytest

from pipelined.aio.clock import VirtualClock
from pipelined.directory import Conflict, CutOff
from pipelined.swarm.config import Rules
from pipelined.swarm.leader import connectivity
from pipelined.swarm.leader.commit_round import Failure
from pipelined.swarm.leader.connectivity import FORGIVEN_STEPS, ConnectivityCheck, History, overdue
from pipelined.swarm.protocol.rounds import Reach
from pipelined.swarm.records.members import Peer, Phase


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


def evict(past, name, known=0, lease_s=1.0):
    """Count an eviction that succeeded; returns how many in a row that makes, and the pause."""
    times, pause = past.next_eviction(name, known, lease_s)
    past.evicted(name, times)
    return times, pause


def pauses(past, name, count, lease_s=1.0):
    return [evict(past, name, 0, lease_s)[1] for _ in range(count)]


def test_each_pause_is_twice_the_last_up_to_the_longest():
    assert pauses(History(), "a", 11) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert pauses(History(), "a", 2, lease_s=400.0) == [400, 400]


def test_another_leader_goes_on_from_what_the_directory_has():
    past = History()
    assert evict(past, "a", 3) == (4, 8.0)
    assert evict(past, "a", 3) == (5, 16.0)
    assert evict(past, "b", 10**18)[1] == 300.0


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
    past.failed([{"a", "c"}]) if again == "failed" else evict(past, "a")
    past.summed([["a", "b"], ["c"]])
    assert past.remembers("a") and not past.remembers("b")
    for _ in range(FORGIVEN_STEPS - 1):
        past.summed([["a", "b"], ["c"]])
    assert not past.remembers("a") and evict(past, "a") == (1, 1.0)


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
        evict(past, name)
    assert [past.remembers(name) for name in "abcd"] == [False, True, True, True]


class View:
    """Two peers of one stage, in a directory of which every transaction fails with `error`."""

    def __init__(self, error, leases):
        self.directory, self._error, self._leases = self, error, leases
        pair = [Peer(name, f"tcp://{name}:1", 1, 0, Phase.SERVING, "m") for name in "ab"]
        self.peers = {peer.name: peer for peer in pair}
        self.record_revisions, self.evictions = {peer.name: 1 for peer in pair}, {}

    def holding(self, stage):
        return list(self.peers.values())

    serving = holding

    async def grant(self, seconds, lasting=False):
        self._leases.append(seconds)

    async def transact(self, *request):
        raise self._error


@pytest.mark.parametrize("error", [Conflict({}), CutOff("no reply")], ids=["conflict", "cut off"])
def test_an_eviction_that_fails_is_not_counted(error):
    """It was counted before the transaction: after 4 failures the first real pause was 16 leases long."""
    leases = []
    check = ConnectivityCheck(View(error, leases), None, Rules("m", stages=1, batch=1, samples=1), VirtualClock())
    failed = [Failure(0, frozenset({"a"}), "no reply")]
    for _ in range(4):
        assert asyncio.run(check.evict(1, 3 * [failed]))
    assert leases == 4 * [3.0]
