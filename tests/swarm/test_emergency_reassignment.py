"""A stage without peers gets a peer of another stage, and training continues without any help."""

import asyncio

import pytest

from pipelined.swarm.settings import GRACE_S
from tests.swarm.virtual_swarm import MemoryStore, VirtualSwarm
from tests.virtual_time import virtual_seconds

pytestmark = pytest.mark.virtual

SELDOM_S = 1e6
"""Between two rebalancings: a peer that moves here was called."""


def steps(swarm):
    return [head.step for head in swarm.heads]


async def training(swarm, store, until):
    """Two peers in the first stage, one in the second; till this step stands."""
    for name, stage in (("p0", 0), ("p1", 1), ("p2", 0)):
        swarm.peer(name, stage, store=store)
    swarm.trainer("t0", steps=9)
    await swarm.until(lambda: swarm.heads[-1:] and swarm.heads[-1].step == until)


async def test_the_last_of_a_stage_that_parts_is_followed_by_one_of_another():
    swarm = VirtualSwarm(stages=2, rebalance_s=SELDOM_S)
    await training(swarm, None, until=2)
    swarm.peers["p1"].peer.leave()
    began = asyncio.get_running_loop().time()
    await swarm.until(swarm.tasks["p1"].done, within=GRACE_S)
    assert asyncio.get_running_loop().time() - began < GRACE_S / 4
    del swarm.peers["p1"], swarm.tasks["p1"]
    await swarm.finish(within=20)
    assert {process.peer.replica.index for process in swarm.peers.values()} == {0, 1}
    taken = sorted(set(steps(swarm)))
    assert taken == list(range(10)) and steps(swarm) == sorted(steps(swarm)), "a step was lost"
    await swarm.close()


@pytest.mark.parametrize("last", [2, 3])
async def test_a_lost_stage_that_was_saved_is_taken_up_by_one_of_another(last):
    """At the step that was saved, or after it."""

    swarm, store = VirtualSwarm(stages=2, rebalance_s=SELDOM_S), MemoryStore()
    await training(swarm, store, until=last)
    await swarm.until(lambda: len(store.saved_stages()) == 2)
    swarm.kill("p1")
    await swarm.finish(within=30)
    assert swarm.heads[-1].step == 9
    await swarm.close()


@pytest.mark.parametrize("rebalance_s", [0.0, SELDOM_S])
async def test_no_peer_moves_to_a_stage_without_saved_state_or_if_peers_are_to_stay(rebalance_s):
    swarm, store = VirtualSwarm(stages=2, rebalance_s=rebalance_s), MemoryStore()
    await training(swarm, None if rebalance_s else store, until=3)
    swarm.kill("p1")
    await virtual_seconds(10.0)
    assert {process.peer.replica.index for process in swarm.peers.values()} == {0}
    swarm.check()
    await swarm.close()


@pytest.mark.parametrize("since", ["a rollback", "a resume", "the beginning"])
async def test_a_stage_that_loses_its_last_peer_before_the_next_step_is_taken_up(since):
    """The head says then that no sums led to it; that is no reason to leave the stage without a peer."""

    store = MemoryStore()
    if since == "a resume":
        former = VirtualSwarm(stages=2)
        await training(former, store, until=4)
        await former.close()
    swarm = VirtualSwarm(stages=2, rebalance_s=SELDOM_S, seed=1)
    for name, stage in (("p0", 0), ("p1", 1), ("p2", 0)):
        swarm.peer(name, stage, store=store)
    swarm.trainer("t0", steps=9, resume=since == "a resume")
    await swarm.until(lambda: swarm.heads[-1:])
    if since == "a rollback":
        await swarm.until(lambda: swarm.heads[-1].step == 7)
        swarm.kill("p1")
        swarm.peer("p3", 1, store=store)
        await swarm.until(lambda: not swarm.heads[-1].was_summed)
        swarm.kill("p3")
    else:
        swarm.kill("p1")
    assert not swarm.heads[-1].was_summed
    await swarm.finish(within=30)
    await swarm.close()
