"""A cut between two members that both reach the directory delays no other member, even if it never heals."""

import pytest

from pipelined.swarm.records.steps import members_of
from pipelined.swarm.settings import GRACE_S
from tests.swarm.virtual_swarm import VirtualSwarm

pytestmark = pytest.mark.virtual

STEPS, WITHIN_S = 4, 30.0


async def trained(topic, act, peers=(0, 0, 1), trainers=1):
    """Do this to the swarm when this is first asked in the second step; all steps are taken even so.

    Args:
        peers: the stage of each.
    """
    swarm, done = VirtualSwarm(stages=1 + max(peers), batch=6), []
    for at, stage in enumerate(peers):
        swarm.peer(f"p{at}", stage)
    swarm.trainer("t0", STEPS, slots=2)
    await swarm.until(lambda: swarm.heads and swarm.heads[-1].step == 1)
    for at in range(1, trainers):
        swarm.trainer(f"t{at}", STEPS, slots=2)

    def hear(passing):
        if not done and passing.kind == "REQUEST" and topic in passing.key:
            done.append(passing)
            act(swarm, passing)

    swarm.network.intercept(hear)
    await swarm.finish(WITHIN_S)
    assert done
    return swarm


@pytest.mark.parametrize("topic", ["reduce", "part"])
@pytest.mark.parametrize("peers", [(0, 0), (0, 0, 0)])
async def test_members_that_cannot_reach_one_another_hold_no_sum_up(topic, peers):
    """One of the two is evicted; where there is a third member, that one gives the returning one the state."""

    swarm = await trained(topic, lambda swarm, _: swarm.network.cut("p0", "p1"), peers)
    (second,) = [head for head in swarm.heads if head.step == 2]
    assert len(members_of(["p0", "p1"]) & second.members[0]) == 1 and len(second.members[0]) == len(peers) - 1
    await swarm.close()


@pytest.mark.parametrize("topic", ["prepare", "reduce", "resume"])
async def test_a_peer_that_the_leader_cannot_reach_is_left_out(topic):
    def act(swarm, passing):
        swarm.network.cut("t0", "p1")

    swarm = await trained("prepare" if topic == "resume" else topic, act)
    assert swarm.heads[-1].step == STEPS
    await swarm.close()


async def test_a_leader_that_reaches_no_peer_of_a_stage_resigns():
    swarm = await trained("prepare", lambda swarm, _: swarm.network.cut("t0", "p1"), peers=(0, 1), trainers=2)
    assert swarm.heads[-1].step == STEPS
    await swarm.close()


async def test_a_peer_that_no_other_of_its_stage_reaches_is_evicted():
    def act(swarm, passing):
        for other in ("p1", "p2", "p3"):
            swarm.network.cut("p0", other)

    swarm = await trained("reduce", act, peers=(0, 0, 0, 0))
    assert all(members_of(["p1", "p2", "p3"]) <= head.members[0] for head in swarm.heads if head.step > 1)
    assert swarm.heads[-1].members[0] == members_of(["p1", "p2", "p3"])
    await swarm.close()


@pytest.mark.parametrize("op", ["forward", "backward", "step", "prepare", "square"])
@pytest.mark.parametrize("delayed", [False, True])
async def test_a_hanging_device_delays_no_step(op, delayed):
    swarm = VirtualSwarm(stages=2, batch=6, delayed=delayed)
    for at, stage in enumerate((0, 0, 1)):
        swarm.peer(f"p{at}", stage)
    swarm.trainer("t0", STEPS, slots=2)
    await swarm.until(lambda: swarm.heads and swarm.heads[-1].step == 1)
    swarm.hang("p1", op)
    await swarm.finish(WITHIN_S)
    await swarm.close()


@pytest.mark.parametrize("op", ["forward", "backward"])
async def test_a_device_that_never_did_a_thing_holds_no_lone_slot_up(op):
    swarm = VirtualSwarm(stages=2, batch=6)
    for at, stage in enumerate((0, 0, 1)):
        swarm.peer(f"p{at}", stage)
    swarm.hang("p1", op)
    swarm.trainer("t0", STEPS, slots=1)
    await swarm.finish(2 * WITHIN_S)
    await swarm.close()


async def test_a_leader_that_reaches_no_peer_resigns_before_the_first_sum():
    """The other trainer cannot ask it for work either."""

    def act(swarm, passing):
        for other in ("p0", "p1", "t1"):
            swarm.network.cut("t0", other)

    swarm = await trained("work", act, peers=(0, 0), trainers=2)
    assert swarm.heads[-1].step == STEPS
    await swarm.close()


async def test_a_peer_with_a_hanging_device_leaves_in_its_grace_period():
    swarm = VirtualSwarm(stages=2, batch=6)
    for at, stage in enumerate((0, 0, 1)):
        swarm.peer(f"p{at}", stage)
    swarm.trainer("t0", 1000, slots=2)
    await swarm.until(lambda: swarm.peers["p1"].peer.replica and swarm.peers["p1"].peer.replica.counted)
    swarm.hang("p1", "counted")
    swarm.peers["p1"].peer.leave()
    await swarm.until(swarm.tasks["p1"].done, within=2 * GRACE_S)
    await swarm.close()
