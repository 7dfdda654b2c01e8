"""Which members withhold their part of a sum, from the replies of all."""

import asyncio

import pytest

from pipelined.aio.clock import VirtualClock
from pipelined.directory import Conflict, CutOff
from pipelined.swarm.config import Rules
from pipelined.swarm.leader.connectivity import ConnectivityCheck, overdue
from pipelined.swarm.leader.failures import Failure
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
