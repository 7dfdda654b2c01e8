"""A member that fails for ever costs few rounds: each time it is evicted it stays away for longer, by its name.

In T seconds one name is evicted at most 1 + log2(1 + T/lease) times, for its pauses are 1, 2, 4 … leases (up to 300 s).
Each eviction costs three failed rounds, and one that finds missing what the evicted member had counted.
"""

import math

import pytest

from pipelined.aio.clock import run_virtual
from pipelined.process.reporting import events
from pipelined.swarm.leader.evictions import MAX_FAILED_ROUNDS
from pipelined.swarm.peer.all_reduce import AllReduce
from pipelined.swarm.peer.rounds import RoundService
from pipelined.swarm.records.steps import members_of
from tests.swarm.virtual_swarm import VirtualSwarm
from transports.rpc import Rejected

LEASE_S = 1.0


def told(kind):
    return [event.facts for event in events.recent() if event.kind == kind and event.level > 20]


def refuse_pieces(monkeypatch, culprit):
    plain = AllReduce.receive_part

    async def take(self, request, sender):
        if self._members[self._own_position].name == culprit:
            raise Rejected("unexpected part", arrays="float64")
        return await plain(self, request, sender)

    monkeypatch.setattr(AllReduce, "receive_part", take)


def lie(monkeypatch, liar, accused):
    """In each round the liar says that a sum failed between two members, as `accused` names them in turn."""
    plain, said = RoundService.reduce, []

    async def reduce(self, request):
        if self._state.name != liar:
            return await plain(self, request)
        by, member = accused[len(said) // MAX_FAILED_ROUNDS % len(accused)]
        said.append((by, member))
        raise Rejected("lost", by=by, member=member)

    monkeypatch.setattr(RoundService, "reduce", reduce)


def started(peers, trainers=("t0",), steps=10_000):
    swarm = VirtualSwarm(stages=1 + max(peers.values()), batch=6, lease_s=LEASE_S)
    for name, stage in peers.items():
        swarm.peer(name, stage)
    for name in trainers:
        swarm.trainer(name, steps, slots=2)
    return swarm


def most_evictions(seconds):
    return 1 + math.floor(math.log2(1 + seconds / LEASE_S))


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("culprit", ["a", "b"])
def test_of_two_members_that_cannot_sum_one_stays_away_and_the_attempts_are_bounded(culprit, monkeypatch):
    async def train():
        swarm = started({"a": 0, "b": 0, "c": 1})
        clock = swarm.network.clock("t0")
        await swarm.until(lambda: swarm.heads and swarm.heads[-1].step >= 2)
        refuse_pieces(monkeypatch, culprit)
        began, step = clock.now(), swarm.heads[-1].step
        await swarm.until(lambda: clock.now() - began > 20.0, within=30.0)
        most = most_evictions(20.0)
        evicted = told("peer evicted")
        assert len({facts["peer"] for facts in evicted}) == 1 and 4 <= len(evicted) <= most
        assert [facts["seconds"] for facts in evicted] == [LEASE_S * 2**at for at in range(len(evicted))]
        assert swarm.heads[-1].step - step > 50
        failed = [event for event in events.recent() if event.kind == "attempt failed" and event.facts["step"] >= step]
        assert len(failed) <= (MAX_FAILED_ROUNDS + 1) * most
        await swarm.close()

    run_virtual(train())


def test_the_member_at_fault_is_found_out_as_soon_as_it_fails_with_a_second_one(monkeypatch):
    async def train():
        swarm = started({"b": 0, "a": 0, "c": 1})  # "a" is younger, so it goes first
        refuse_pieces(monkeypatch, "b")
        await swarm.until(lambda: told("peer evicted"))
        assert [facts["peer"] for facts in told("peer evicted")] == ["a"]
        swarm.peer("d", 0)
        await swarm.until(lambda: len(told("peer evicted")) > 1)
        await swarm.until(lambda: swarm.heads[-1].step > 40)
        assert {facts["peer"] for facts in told("peer evicted")[1:]} == {"b"}
        assert swarm.heads[-1].members[0] == members_of(["a", "d"])
        await swarm.close()

    run_virtual(train())


def test_another_leader_and_another_process_of_the_name_go_on_from_the_last_pause(monkeypatch):
    async def train():
        swarm = started({"a": 0, "b": 0, "c": 1}, trainers=("t0", "t1"))
        refuse_pieces(monkeypatch, "a")
        await swarm.until(lambda: len(told("peer evicted")) == 3)
        (name,) = {facts["peer"] for facts in told("peer evicted")}
        evicted_at = swarm.network.clock("directory").now()
        swarm.kill(swarm.trainers["t1"].view.leader.name)
        swarm.kill(name)
        swarm.peer(name, 0)
        (trainer,) = swarm.trainers.values()
        await swarm.until(lambda: name not in trainer.view.peers)
        await swarm.until(lambda: name in trainer.view.peers)
        assert swarm.network.clock("directory").now() - evicted_at > 4 * LEASE_S - 0.1
        await swarm.until(lambda: len(told("peer evicted")) == 4)
        assert [facts["seconds"] for facts in told("peer evicted")] == [1.0, 2.0, 4.0, 8.0]
        await swarm.close()

    run_virtual(train())


def test_a_name_that_is_kept_away_comes_at_once_where_its_stage_is_lost(monkeypatch):
    async def train():
        swarm = started({"a": 0, "b": 0, "c": 1})
        refuse_pieces(monkeypatch, "a")
        await swarm.until(lambda: len(told("peer evicted")) == 4)
        name = told("peer evicted")[0]["peer"]
        view, began = swarm.trainers["t0"].view, swarm.network.clock("t0").now()
        swarm.kill("ab".replace(name, ""))
        await swarm.until(lambda: name in view.peers)
        assert swarm.network.clock("t0").now() - began < 2.5 * LEASE_S, "it stayed away for all of its 8 leases"
        await swarm.close()

    run_virtual(train())


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(
    "accused",
    [[("x", "a"), ("x", "b"), ("x", "c")], [("a", "b"), ("b", "c"), ("c", "a")], [("a", "x"), ("b", "c"), ("x", "c")]],
    ids=["of one at a time", "of two others", "of either"],
)
@pytest.mark.parametrize("oldest", [True, False])
def test_a_member_that_accuses_others_falsely_has_one_of_them_evicted_at_most(accused, oldest, monkeypatch):
    async def train():
        names = ["x", "a", "b", "c"] if oldest else ["a", "b", "c", "x"]
        swarm = started({name: 0 for name in names} | {"d": 1})
        lie(monkeypatch, "x", accused)
        await swarm.until(lambda: [facts["peer"] for facts in told("peer evicted")].count("x") == 3)
        assert len({facts["peer"] for facts in told("peer evicted")} - {"x"}) <= 1
        assert len(told("peer evicted")) <= 4
        await swarm.close()

    run_virtual(train())
