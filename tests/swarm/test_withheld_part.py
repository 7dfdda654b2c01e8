"""A member that withholds its part of a sum, and answers everything else, holds the step up for a bounded time.

The bound: the longest that a member may bring nothing (10 leases, or more where sums were seen to last), up to the
leader's next look (1, 3, 7, 15, 31, 47 … leases after the round began), and three leases for the asking.
"""

import pytest

from pipelined.aio.clock import run_virtual
from pipelined.process.reporting import events
from pipelined.swarm.leader.commit import CommitLoop
from pipelined.swarm.peer.all_reduce import AllReduce
from tests.swarm.virtual_swarm import VirtualSwarm
from tests.virtual_time import virtual_seconds

LEASE_S, FOR_EVER_S = 1.0, 1e9
BOUND_S = (15 + 3) * LEASE_S


def told(kind):
    return [event.facts for event in events.recent() if event.kind == kind]


def withhold(monkeypatch, culprit, method):
    """The culprit brings no part to any owner (`_send_part`), or answers no member that brings it one (`take`)."""
    plain = getattr(AllReduce, method)

    async def held(self, *args):
        if self._members[self._own_position].name == culprit:
            await virtual_seconds(FOR_EVER_S)
        return await plain(self, *args)

    monkeypatch.setattr(AllReduce, method, held)


async def seconds_of_the_next_step(swarm):
    clock, step = swarm.network.clock("t0"), swarm.heads[-1].step
    began = clock.now()
    await swarm.until(lambda: swarm.heads[-1].step > step + 1, within=100.0)
    return clock.now() - began


@pytest.mark.parametrize("method", ["_send_part", "receive_part"])
@pytest.mark.parametrize("mates", ["ab", "abc"])
def test_it_is_evicted_and_the_step_is_taken_without_it(method, mates, monkeypatch):
    async def train():
        swarm = VirtualSwarm(stages=2, batch=6, lease_s=LEASE_S)
        for name in mates:
            swarm.peer(name, 0)
        swarm.peer("z", 1)
        swarm.trainer("t0", steps=1000, slots=2)
        await swarm.until(lambda: swarm.heads and swarm.heads[-1].step == 2)
        withhold(monkeypatch, "b", method)
        assert 10 * LEASE_S < await seconds_of_the_next_step(swarm) < BOUND_S + 1.0
        (evicted,) = told("peer evicted")
        assert "brought nothing to the sum for more than 10 s" in evicted["why"]
        assert evicted["peer"] in ("ab" if mates == "ab" else "b")
        await swarm.close()

    run_virtual(train())


def test_the_next_time_it_is_given_twice_as_long(monkeypatch):
    """So a member on a line far slower than the others' has its chance."""

    async def train():
        swarm = VirtualSwarm(stages=2, batch=6, lease_s=LEASE_S)
        for name, stage in {"a": 0, "b": 0, "c": 0, "z": 1}.items():
            swarm.peer(name, stage)
        swarm.trainer("t0", steps=1000, slots=2)
        await swarm.until(lambda: swarm.heads and swarm.heads[-1].step == 2)
        withhold(monkeypatch, "b", "_send_part")
        await swarm.until(lambda: len(told("peer evicted")) == 2, within=60.0)
        assert ["more than 10 s" in facts["why"] for facts in told("peer evicted")] == [True, False]
        assert "more than 20 s" in told("peer evicted")[1]["why"]
        await swarm.close()

    run_virtual(train())


def test_a_sum_that_lasts_while_its_pieces_come_is_left_alone(monkeypatch):
    """Sixteen seconds a sum, so that the leader looks when it has lasted for fifteen, and no piece more than eight."""
    plain = AllReduce._send_part

    async def slowly(self, owner, start, span):
        await virtual_seconds(8.0)
        return await plain(self, owner, start, span)

    async def train():
        swarm = VirtualSwarm(stages=2, batch=6, lease_s=LEASE_S, chunk_bytes=8)
        for name, stage in {"a": 0, "b": 0, "z": 1}.items():
            swarm.peer(name, stage)
        swarm.trainer("t0", steps=1000, slots=2)
        await swarm.until(lambda: swarm.heads and swarm.heads[-1].step == 4)
        monkeypatch.setattr("pipelined.swarm.peer.all_reduce.IN_FLIGHT", 1)
        monkeypatch.setattr(AllReduce, "_send_part", slowly)
        assert await seconds_of_the_next_step(swarm) > 2 * 15 * LEASE_S
        assert not told("peer evicted")
        await swarm.close()

    run_virtual(train())


def test_parts_that_are_spread_over_a_long_time_are_not_late(monkeypatch):
    async def train():
        swarm = VirtualSwarm(stages=2, batch=6, lease_s=LEASE_S, delayed=True)
        for name, stage in {"a": 0, "b": 0, "c": 0, "z": 1}.items():
            swarm.peer(name, stage)
        swarm.trainer("t0", steps=1000, slots=2)
        await swarm.until(lambda: swarm.heads and swarm.heads[-1].step == 4)
        monkeypatch.setattr(CommitLoop, "_overlap_seconds", lambda self, queue: 40.0)
        await swarm.until(lambda: swarm.heads[-1].step == 8, within=200.0)
        assert not told("peer evicted")
        assert max(facts["seconds"] for facts in told("round lasts")) >= 15.0, "no sum was looked at so late"
        await swarm.close()

    run_virtual(train())
