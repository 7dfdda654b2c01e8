"""A draining peer never exits with the only copy of a state, and delays no other member beyond its grace period."""

import asyncio

import pytest

from pipelined.swarm.settings import GRACE_S
from tests.swarm.virtual_swarm import SAVE_EVERY, MemoryStore, VirtualSwarm
from tests.virtual_time import virtual_seconds

pytestmark = pytest.mark.virtual


def steps(swarm):
    return [head.step for head in swarm.heads]


async def training(swarm, *peers, store=None, steps=200, speed=1.0, save_every=SAVE_EVERY):
    """A swarm in which the first step is taken."""
    for name, stage in peers:
        swarm.peer(name, stage, speed, store=store, save_every=save_every)
    swarm.trainer("t0", steps=steps)
    await swarm.until(lambda: swarm.heads[-1:] and swarm.heads[-1].step == 1)


async def gone(swarm, name, within):
    """Wait until a peer has left in order."""
    start, task = asyncio.get_running_loop().time(), swarm.tasks[name]
    await swarm.until(task.done, within=within)
    del swarm.peers[name], swarm.tasks[name]
    return asyncio.get_running_loop().time() - start


async def test_the_last_peer_of_a_stage_serves_until_a_new_one_has_its_state():
    """The newcomer goes there though the stage has a peer; no step is lost meanwhile."""

    swarm = VirtualSwarm(stages=2)
    await training(swarm, ("p0", 0), ("p1", 1), steps=8)
    swarm.peers["p1"].peer.leave()
    await swarm.until(lambda: swarm.heads[-1].step == 4)
    assert not swarm.tasks["p1"].done(), "it left a stage that no other peer has"
    swarm.peer("late")
    assert await gone(swarm, "p1", within=5) < GRACE_S / 4
    assert swarm.peers["late"].peer.replica.index == 1
    await swarm.finish(within=20)
    assert steps(swarm) == list(range(9))
    await swarm.close()


async def test_of_several_draining_peers_one_stays():
    swarm = VirtualSwarm(stages=1)
    await training(swarm, ("p0", 0), ("p1", 0), ("p2", 0), steps=5)
    for name in ("p0", "p1", "p2"):
        swarm.peers[name].peer.leave()
    left = lambda: [name for name in ("p0", "p1", "p2") if swarm.tasks[name].done()]  # noqa: E731
    await swarm.until(lambda: len(left()) == 2, within=5)
    for name in left():
        await gone(swarm, name, within=1)
    await swarm.finish(within=20)
    assert steps(swarm) == list(range(6))
    await swarm.close()


@pytest.mark.parametrize("save_every", [SAVE_EVERY, 0])
async def test_the_last_peer_of_a_stage_saves_it_when_its_grace_period_ends(save_every):
    """So that a later peer continues from that very step; also where nothing is saved before the end."""

    swarm, store = VirtualSwarm(stages=1, batch=4), MemoryStore()
    await training(swarm, ("p0", 0), store=store, speed=0.03, save_every=save_every)
    swarm.peers["p0"].peer.leave()
    assert GRACE_S <= await gone(swarm, "p0", within=2 * GRACE_S) < 1.25 * GRACE_S, (
        "its device is slow, but not so slow"
    )
    last, saved = swarm.heads[-1].step, {saved.step for saved in store.saved_stages()}
    assert last in saved and (save_every or saved == {last})
    swarm.peer("late", store=store)
    await swarm.until(lambda: swarm.heads[-1].step == last + 2)
    assert steps(swarm) == list(range(last + 3)), "it went back, though it need not"
    await swarm.close()


async def test_a_draining_peer_leaves_at_once_after_the_last_step():
    swarm = VirtualSwarm(stages=1)
    await training(swarm, ("p0", 0), steps=2)
    await swarm.finish(within=10)
    swarm.peers["p0"].peer.leave()
    assert await gone(swarm, "p0", within=GRACE_S) < 1.0
    await swarm.close()


async def test_a_draining_peer_without_state_leaves_at_once():
    swarm = VirtualSwarm(stages=2)
    await training(swarm, ("p0", 0), ("p1", 1))
    swarm.kill("p1")
    swarm.peer("late", 1)
    await virtual_seconds(3.0)
    swarm.peers["late"].peer.leave()
    assert await gone(swarm, "late", within=GRACE_S) < 1.0
    await swarm.close()
