"""In an idle swarm the directory sends no changes, and no member that joins or leaves may wait for one."""

import pytest

from pipelined.swarm.records.members import Phase
from tests.swarm.virtual_swarm import VirtualSwarm
from tests.virtual_time import virtual_seconds

pytestmark = pytest.mark.virtual


async def trained(steps=2):
    """A swarm of one stage that has taken its steps, and one peer."""
    swarm = VirtualSwarm(stages=1, batch=4)
    swarm.peer("p0")
    swarm.trainer("t0", steps=steps)
    await swarm.finish(within=20)
    swarm.kill("t0")
    return swarm


async def leaves(swarm, after):
    """Ask its first peer to leave when nothing has happened for so many seconds: it does."""
    await virtual_seconds(after)
    swarm.peers["p0"].peer.leave()
    await swarm.until(lambda: swarm.tasks["p0"].done())
    await swarm.close()


@pytest.mark.parametrize("topic", ["manifest", "chunk"])
async def test_a_joining_peer_tries_a_failed_donor_again(topic):
    swarm = await trained()
    await virtual_seconds(5)
    struck = []

    def hear(passing):
        if topic in passing.key and not struck:
            struck.append(passing)
            swarm.network.reset("p0", "late")

    swarm.network.intercept(hear)
    swarm.peer("late", stage=0)
    await swarm.until(lambda: swarm.peers["late"].peer.replica is not None)
    assert struck
    await swarm.close()


async def test_a_peer_leaves_before_the_first_step():
    swarm = VirtualSwarm(stages=1)
    swarm.peer("p0")
    await leaves(swarm, after=2)


async def test_a_peer_leaves_while_it_joins_its_stage_again():
    """A step was taken without it, and the peer that took it is lost: no peer can give it the state."""

    swarm = VirtualSwarm(stages=1, batch=4)
    swarm.peer("p0")
    swarm.trainer("t0", steps=1000)
    await swarm.until(lambda: swarm.peers["p0"].peer.replica is not None)
    swarm.peer("p1")
    await swarm.until(lambda: swarm.peers["p1"].peer.replica is not None)

    def hear(passing):
        if "prepare" in passing.key and passing.destination == "p0":
            swarm.network.reset("p0", "t0")
        if "totals" in passing.key and passing.destination == "p1":
            swarm.network.reset("p0", "p1")

    swarm.network.intercept(hear)
    await swarm.until(lambda: swarm.trainers["t0"].view.peers["p0"].phase == Phase.JOINING)
    swarm.kill("p1")
    await leaves(swarm, after=5)


async def test_a_newcomer_that_knows_no_stage_comes_once_a_trainer_leads():
    swarm = await trained()
    swarm.peer("late")
    await virtual_seconds(5)
    assert swarm.peers["late"].peer.replica is None
    swarm.trainer("t1", steps=4)
    await swarm.until(lambda: swarm.peers["late"].peer.replica is not None)
    await swarm.finish(within=20)
    await swarm.close()
