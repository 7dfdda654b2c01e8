"""A member that refuses every sum is evicted after three failed rounds, and the others take the step."""

import re

import pytest

from apps.swarm.config import read_goal
from pipelined.aio.clock import run_virtual
from pipelined.process.reporting import events
from pipelined.swarm.leader.evictions import MAX_FAILED_ROUNDS
from pipelined.swarm.peer.all_reduce import AllReduce
from pipelined.swarm.peer.rounds import RoundService
from pipelined.swarm.records.steps import members_of
from pipelined.swarm.status.reader import StatusReader
from tests.swarm.virtual_swarm import VirtualSwarm
from transports.rpc import Rejected

STEPS = 4


def refuse_pieces(monkeypatch, culprit, until=lambda: False):
    """The culprit refuses what the others bring: say, for its codec, its memory, or another version."""
    plain = AllReduce.receive_part

    async def take(self, request, sender):
        if self._members[self._own_position].name == culprit and not until():
            raise Rejected("unexpected part", arrays="float64")
        return await plain(self, request, sender)

    monkeypatch.setattr(AllReduce, "receive_part", take)


def refuse_to_reduce(monkeypatch, culprit, until=lambda: False):
    """The culprit counts microbatches, and refuses to sum as soon as the leader asks."""
    plain = RoundService.reduce

    async def reduce(self, request):
        if self._state.name == culprit and not until():
            raise Rejected("out of memory")
        return await plain(self, request)

    monkeypatch.setattr(RoundService, "reduce", reduce)


async def trained(peers, within=20.0):
    swarm = VirtualSwarm(stages=1 + max(peers.values()), batch=6)
    for name, stage in peers.items():
        swarm.peer(name, stage)
    swarm.trainer("t0", STEPS, slots=2)
    await swarm.finish(within)
    await swarm.close()
    return swarm


@pytest.mark.parametrize("refuse", [refuse_pieces, refuse_to_reduce])
@pytest.mark.parametrize("culprit", ["a", "b", "d"])
def test_the_member_that_fails_with_all_others_is_evicted_and_the_reason_reported(refuse, culprit, monkeypatch):
    refuse(monkeypatch, culprit)
    swarm = run_virtual(trained({"a": 0, "b": 0, "c": 1, "d": 0}))
    assert swarm.heads[-1].step == STEPS
    for step in range(STEPS):
        failed = [e for e in events.recent() if e.kind == "attempt failed" and e.facts["step"] == step and e.level > 20]
        assert len(failed) <= MAX_FAILED_ROUNDS
    evicted = [event for event in events.recent() if event.kind == "peer evicted"]
    assert {event.facts["peer"] for event in evicted} == {culprit}
    assert all(f"{MAX_FAILED_ROUNDS} rounds failed" in event.facts["why"] for event in evicted)


@pytest.mark.parametrize("refuse", [refuse_pieces, refuse_to_reduce])
def test_of_two_members_that_cannot_sum_one_goes_and_every_step_is_taken(refuse, monkeypatch):
    refuse(monkeypatch, "b")
    swarm = run_virtual(trained({"a": 0, "b": 0, "c": 1}))
    assert swarm.heads[-1].step == STEPS


def test_a_member_that_fails_twice_and_then_sums_is_kept(monkeypatch):
    tries = []
    refuse_to_reduce(monkeypatch, "b", until=lambda: tries.append(1) or len(tries) >= MAX_FAILED_ROUNDS)
    swarm = run_virtual(trained({"a": 0, "b": 0, "c": 1}))
    assert all(head.members[0] == members_of(["a", "b"]) for head in swarm.heads if head.members)
    assert not [event for event in events.recent() if event.kind == "peer evicted"]


def test_the_last_member_of_a_stage_is_never_evicted_and_status_says_what_fails(monkeypatch):
    async def train():
        swarm = VirtualSwarm(stages=2, batch=6)
        for name, stage in {"a": 0, "b": 1}.items():
            swarm.peer(name, stage)
        refuse_to_reduce(monkeypatch, "b", until=lambda: swarm.heads and swarm.network.clock("t0").now() > 5.0)
        swarm.trainer("t0", STEPS, slots=2)
        await swarm.until(lambda: swarm.network.clock("t0").now() > 3.0)
        endpoint, directory, _ = swarm.client("look")
        seen = (await StatusReader(endpoint, directory, read_goal).read()).to_dict()
        assert seen["attempt"] > MAX_FAILED_ROUNDS and seen["step_phase"]
        assert re.fullmatch(r"step 0, round \d+: b: out of memory", seen["last_failure"])
        assert seen["events"][-1]["kind"] == "attempt failed"
        await swarm.finish(20.0)
        await swarm.close()

    run_virtual(train())
    assert not [event for event in events.recent() if event.kind == "peer evicted"]
