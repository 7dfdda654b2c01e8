"""Where members of a stage cannot reach one another, few are evicted, and all members learn the same."""

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelined.membership.directory import Conflict, CutOff
from pipelined.swarm.leader.evictions import Evictor, choose_evictions
from pipelined.swarm.leader.failures import Failure
from pipelined.swarm.records.members import PeerRecord, Phase
from pipelined.swarm.rules import Rules


def peer(name, incarnation=None, phase=Phase.SERVING):
    return PeerRecord(name, f"virtual://{name}", ord(name) if incarnation is None else incarnation, 0, phase, "")


def goes(said, peers=None, **before):
    return "".join(each.name for each in choose_evictions(peers or [peer(name) for name in sorted(said)], said, before))


def told(*names, **cuts):
    return {name: set(cuts.get(name, "")) for name in "".join(names)}


@pytest.mark.parametrize(
    "said, gone",
    [
        (told("abc"), ""),
        (told("ab", a="b", b="a"), "b"),
        (told("ab", a="b"), "b"),
        (told("ab", b="a"), "b"),
        (told("abcd", b="a", c="a", d="a"), "a"),
        (told("abcd", a="bcd"), "a"),
        (told("abcd", a="cd", b="cd", c="ab", d="ab"), "dc"),
        (told("a", a="xyz"), ""),
    ],
    ids=[
        "all reach all",
        "a pair",
        "one says so",
        "the other says so",
        "accused by all",
        "accuses all",
        "halves",
        "alone",
    ],
)
def test_known_answers(said, gone):
    assert goes(said) == gone


@pytest.mark.parametrize("before, gone", [({}, "b"), ({"a": 1, "b": 1}, "b"), ({"a": 2, "b": 1}, "a"), ({"a": 1}, "a")])
def test_of_a_pair_the_one_goes_that_failed_with_more_others_before(before, gone):
    assert goes(told("ab", a="b"), **before) == gone


def test_what_was_before_counts_less_than_what_is_cut_now():
    assert goes(told("abc", a="b", c="b"), a=7, c=7) == "b"


def test_a_peer_without_a_report_is_evicted_first():
    peers = [peer(name) for name in "abc"]
    assert goes(told("bc", b="c"), peers) == "ac"


def test_no_eviction_without_a_report():
    assert goes({}, [peer("a"), peer("b")]) == ""


def test_a_draining_peer_is_evicted_first_and_never_remains_alone():
    peers = [peer("a", phase=Phase.LEAVING), peer("b")]
    assert goes(told("ab", a="b"), peers) == "a"
    assert goes(told("a"), peers) == ""


@given(st.integers(1, 7), st.data())
def test_those_that_are_left_reach_one_another_and_one_serves(count, data):
    names = "abcdefg"[:count]
    phases = data.draw(st.lists(st.sampled_from([Phase.SERVING, Phase.LEAVING]), min_size=count, max_size=count))
    peers = [peer(name, phase=phase) for name, phase in zip(names, phases, strict=True)]
    heard = data.draw(st.sets(st.sampled_from(names)))
    said = {name: data.draw(st.sets(st.sampled_from(names))) for name in sorted(heard)}
    gone = choose_evictions(peers, said, {})
    remaining = [each for each in peers if each not in gone]
    if any(each.phase == Phase.SERVING and each.name in said for each in peers):
        assert any(each.phase == Phase.SERVING for each in remaining) and len(set(gone)) == len(gone)
        for one, other in itertools.combinations(remaining, 2):
            assert other.name not in said[one.name] and one.name not in said[other.name]
    else:
        assert not gone


class View:
    """Two peers of one stage, in a directory of which every transaction fails with `error`."""

    def __init__(self, error, leases):
        self.directory, self._error, self._leases = self, error, leases
        pair = [PeerRecord(name, f"tcp://{name}:1", 1, 0, Phase.SERVING, "m") for name in "ab"]
        self.peers = {peer.name: peer for peer in pair}
        self.evictions = {}

    def peers_with(self, stage):
        return list(self.peers.values())

    serving = peers_with

    def record_revision(self, name):
        return 1

    async def grant(self, seconds, lasting=False):
        self._leases.append(seconds)

    async def transact(self, *request):
        raise self._error


@pytest.mark.parametrize("error", [Conflict({}), CutOff("no reply")], ids=["conflict", "cut off"])
def test_an_eviction_that_fails_is_not_counted(error):
    """It was counted before the transaction: after 4 failures the first real pause was 16 leases long."""
    leases = []
    evictor = Evictor(View(error, leases), Rules("m", stages=1, batch=1, samples=1))
    failed = [Failure(0, frozenset({"a"}), "no reply")]
    for _ in range(4):
        assert asyncio.run(evictor.evict_failed(1, 3 * [failed]))
    assert leases == 4 * [3.0]
