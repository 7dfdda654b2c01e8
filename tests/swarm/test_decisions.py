"""Every decision of a swarm is an event that says what was decided, of which member or stage, and why."""

import pytest

from pipelined.process.reporting import events
from pipelined.state.stages.store import StoreError
from pipelined.swarm.records.members import LEADER, PEERS
from tests.swarm.virtual_swarm import MemoryStore, VirtualSwarm

SELDOM_S = 1e6
"""Between two looks at the stages' loads."""


class FullStore(MemoryStore):
    """A directory on a full disk."""

    def save(self, saved, state):
        raise StoreError("no space left on device")


def decided(kind):
    """The facts of the first event of a kind."""
    return next((event.facts for event in events.recent() if event.kind == kind), None)


async def swarm_of(*stages, trainers=("t0",), steps=6, store=None, **rules):
    """Peers p0, p1, … of these stages, after their first step."""
    balance = rules.pop("balance", None)
    swarm = VirtualSwarm(stages=1 + max(stages), batch=6, **rules)
    for at, stage in enumerate(stages):
        swarm.peer(f"p{at}", stage, store=store)
    for name in trainers:
        swarm.trainer(name, steps, slots=2, balance=balance)
    await swarm.until(lambda: swarm.heads and swarm.heads[-1].step == 1)
    return swarm


async def death():
    swarm = await swarm_of(0, 0, 1)
    swarm.kill("p1")
    return swarm


async def strange_record():
    swarm = await swarm_of(0, 1)
    await swarm.directory.transact({}, {PEERS + "x": b"\xc1"})
    return swarm


async def another_leader():
    swarm = await swarm_of(0, 1, trainers=("t0", "t1"))
    await swarm.directory.transact({}, {}, [LEADER])
    return swarm


async def leader_cut_off():
    swarm = await swarm_of(0, 0, trainers=("t0", "t1"))
    leader = swarm.trainers["t0"].view.leader.name
    for other in ("p0", "p1"):
        swarm.network.cut(leader, other)
    return swarm


async def loads_differ():
    return await swarm_of(0, 0, 1, rebalance_s=0.01, balance=lambda loads: {"p0": 1} if len(loads[0]) == 2 else {})


async def last_of_a_stage_leaves():
    swarm = await swarm_of(0, 1, 0, rebalance_s=SELDOM_S)
    swarm.peers["p1"].peer.leave()
    await swarm.until(swarm.tasks["p1"].done, within=20)
    del swarm.peers["p1"], swarm.tasks["p1"]
    return swarm


async def stage_lost():
    store = MemoryStore()
    swarm = await swarm_of(0, 1, store=store)
    await swarm.until(lambda: swarm.heads[-1].step == 3)
    swarm.kill("p1")
    swarm.peer("late", 1, store=store)
    return swarm


async def members_cut():
    swarm = await swarm_of(0, 0, 1)
    swarm.network.cut("p0", "p1")
    return swarm


async def full_disk():
    return await swarm_of(0, 1, store=FullStore())


async def donor_cut():
    swarm = await swarm_of(0, 1, steps=40)
    swarm.network.cut("late", "p0")
    swarm.peer("late", 0)
    await swarm.until(lambda: decided("donor failed"), within=30)
    swarm.network.heal("late", "p0")
    return swarm


DECISIONS = [
    (death, "peer banned", {"peer": "p1", "stage": 0, "by": "t0"}, "p1"),
    (strange_record, "record refused", {"key": "peers/x"}, "not a PeerRecord"),
    (another_leader, "leadership lost", {}, "another leader, or none"),
    (another_leader, "leads", {}, ""),
    (leader_cut_off, "leadership given up", {}, "no peer of a stage"),
    (loads_differ, "peer moved", {"peer": "p0", "stage": 1}, "most work"),
    (last_of_a_stage_leaves, "peer reassigned", {"stage": 1}, "no peer that stays"),
    (stage_lost, "rolled back", {"step": 3, "to": 2}, "lost every peer"),
    (stage_lost, "stage saved", {"step": 2}, ""),
    (members_cut, "peer evicted", {"stage": 0}, "cannot reach"),
    (members_cut, "round lasts", {"seconds": 1.0, "peers": 3}, ""),
    (members_cut, "evicted", {}, "could not reach"),
    (full_disk, "save failed", {"step": 2}, "no space left"),
    (donor_cut, "donor failed", {"peer": "late", "donor": "p0"}, "unreachable"),
]


@pytest.mark.virtual
@pytest.mark.parametrize("befall", dict.fromkeys(each[0] for each in DECISIONS), ids=lambda befall: befall.__name__)
async def test_after_faults_a_swarm_has_logged_its_decisions_and_their_reasons(befall):
    swarm = await befall()
    await swarm.finish(within=60)
    await swarm.close()
    for _, kind, facts, why in [each for each in DECISIONS if each[0] is befall]:
        told = decided(kind)
        assert told is not None and told.items() >= facts.items(), f"{kind}: {told}"
        assert why in told.get("why", ""), f"{kind}: {told}"
