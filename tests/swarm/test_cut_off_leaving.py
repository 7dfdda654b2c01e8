"""A peer that is cut off while it drains never exits with the only copy of a state, and exits in time."""

import asyncio

import pytest

from pipelined.swarm.settings import GRACE_S
from tests.swarm.virtual_swarm import VirtualSwarm
from tests.virtual_time import virtual_seconds
from transports.rpc import Rejected

pytestmark = pytest.mark.virtual


async def cut_off(seconds):
    """A swarm with one peer, which is cut off for so long and drains; the moment of the request to leave."""
    swarm = VirtualSwarm(stages=1, batch=4)
    swarm.peer("p0")
    swarm.trainer("t0", steps=1000)
    await swarm.until(lambda: swarm.heads[-1:] and swarm.heads[-1].step == 2)
    asked = asyncio.get_running_loop().time()
    swarm.peers["p0"].peer.leave()
    swarm.network.cut_off("p0")
    await virtual_seconds(seconds)
    swarm.network.heal("p0")
    return swarm, asked


def assert_in_its_time(asked):
    assert GRACE_S <= asyncio.get_running_loop().time() - asked < 1.25 * GRACE_S


@pytest.mark.parametrize("seconds", [0.5, 3.0])
async def test_it_serves_on_when_it_is_back_until_another_has_its_state(seconds):
    swarm, _ = await cut_off(seconds)
    swarm.peer("late")
    await swarm.until(lambda: swarm.tasks["p0"].done(), within=GRACE_S / 2)
    del swarm.peers["p0"], swarm.tasks["p0"]
    step = swarm.heads[-1].step
    await swarm.until(lambda: swarm.heads[-1].step > step + 2)
    assert [head.step for head in swarm.heads] == list(range(len(swarm.heads))), "a step was lost"
    await swarm.close()


async def test_a_draining_peer_exits_when_its_grace_period_ends():
    swarm, asked = await cut_off(3.0)
    await swarm.until(lambda: swarm.tasks["p0"].done(), within=2 * GRACE_S)
    assert_in_its_time(asked)
    await swarm.close()


def refusing(swarm):
    """The successor can be reached, and takes nothing."""

    async def refuse(request):
        raise Rejected("overlap")

    swarm.endpoints["p0"].handle("inherit", refuse, 1 << 20)


def unreachable(swarm):
    """Both reach all others, so neither learns that the other receives nothing."""
    swarm.network.cut("p0", "p1")


@pytest.mark.parametrize("successor", [refusing, unreachable])
async def test_a_peer_without_a_successor_that_sees_no_step_end_leaves_when_its_grace_period_ends(successor):
    swarm = VirtualSwarm(stages=2, batch=4)
    for name, stage in (("p0", 0), ("p1", 0), ("last", 1)):
        swarm.peer(name, stage)
    swarm.trainer("t0", steps=1000)
    await swarm.until(lambda: swarm.peers["p1"].peer.replica and swarm.peers["p1"].peer.replica.counted)
    swarm.kill("last")
    successor(swarm)
    asked = asyncio.get_running_loop().time()
    swarm.peers["p1"].peer.leave()
    await swarm.until(swarm.tasks["p1"].done, within=2 * GRACE_S)
    assert_in_its_time(asked)
    await swarm.close()
