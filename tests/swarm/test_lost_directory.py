"""A directory that dies: passes continue, commits wait, nothing is lost; a member that is cut off reports it."""

import pytest

from apps.swarm.config import read_goal
from pipelined.membership.messaging.messages import send
from pipelined.swarm.protocol.status import Status
from pipelined.swarm.records.steps import members_of
from pipelined.swarm.status.reader import StatusReader
from tests.swarm.virtual_swarm import VirtualSwarm
from tests.virtual_time import virtual_seconds

pytestmark = pytest.mark.virtual

HOUR_S = 3600.0


async def status(swarm, name):
    """The status of a process, as the watcher receives it."""
    return await send(swarm.watcher, f"virtual://{name}", Status())


def passes(swarm):
    """Forwards and backwards that all peers have done."""
    return sum(sum(each.peer.replica.passes.counts.values()) for each in swarm.peers.values())


async def test_while_the_directory_is_dead_peers_compute_and_no_step_is_taken():
    swarm = VirtualSwarm(stages=2, batch=40)
    for at in range(4):
        swarm.peer(f"p{at}")
    swarm.trainer("t0", steps=3)
    await swarm.until(lambda: len(swarm.heads) == 2)
    before = passes(swarm)
    swarm.kill("directory")
    await virtual_seconds(3.0)
    assert passes(swarm) == before + 40 * 3, "the step under way was not computed to its end"
    assert {each.peer.replica.step for each in swarm.peers.values()} == {1}, "a step was taken without the directory"
    assert all([(await status(swarm, name)).cut_off for name in ("p0", "p3", "t0")])
    swarm.start_directory()
    await swarm.finish(within=20)
    assert [head.step for head in swarm.heads] == [0, 1, 2, 3]
    assert len(swarm.summed[swarm.heads[2].round][0]) == 2, "a member of the first count did not take part"
    assert not any([(await status(swarm, f"p{at}")).cut_off for at in range(4)])
    await swarm.close()


async def test_a_peer_cut_off_from_the_directory_says_so_and_takes_no_step_while_the_others_go_on():
    swarm = VirtualSwarm(stages=1, batch=20)
    for name in ("p0", "p1"):
        swarm.peer(name)
    swarm.trainer("t0", steps=12)
    await swarm.until(lambda: len(swarm.heads) == 3)
    swarm.network.cut("p0", "directory")
    await swarm.until(lambda: swarm.heads[-1].step >= 8)
    alone = swarm.peers["p0"].peer.replica.step
    assert (await status(swarm, "p0")).cut_off and not (await status(swarm, "p1")).cut_off
    assert alone < swarm.heads[-1].step and swarm.heads[-1].members == [members_of(["p1"])]
    swarm.network.heal("p0", "directory")
    await swarm.finish(within=20)
    assert swarm.heads[-1].members == [members_of(["p0", "p1"])], "it did not come back"
    await swarm.close()


async def test_eight_peers_with_clocks_an_hour_apart_are_one_membership_three_seconds_after_the_last():
    swarm = VirtualSwarm(stages=2, batch=16, lease_s=3.0)
    swarm.trainer("t0", steps=4, offset=-HOUR_S)
    for at in range(8):
        swarm.peer(f"p{at}", offset=(at - 4) * HOUR_S / 7)
    await virtual_seconds(3.0)
    known = lambda view: sorted((peer.name, peer.stage, str(peer.phase)) for peer in view.peers.values())  # noqa: E731
    every = known(swarm.trainers["t0"].view)
    assert len(every) == 8 and {phase for *_, phase in every} == {"serving"}
    assert sorted(stage for _, stage, _ in every) == [0] * 4 + [1] * 4
    for peer in swarm.peers.values():  # each follows its own stage
        mine = [each for each in every if each[1] in peer.view.stages]
        assert len(mine) == 4 and known(peer.view) == mine, "not one membership"
    await swarm.finish(within=20)
    assert sorted(len(names) for names in swarm.heads[-1].members) == [4, 4]
    await swarm.close()


async def test_a_stage_without_a_peer_is_waited_for():
    swarm = VirtualSwarm(stages=2, batch=4)
    swarm.peer("p0", stage=0)
    swarm.trainer("t0", steps=2)
    await virtual_seconds(10.0)
    assert [head.step for head in swarm.heads] == [0]
    assert (await StatusReader(swarm.watcher, swarm.directory, read_goal).read()).waits_for == "a peer of stage 1"
    swarm.peer("p1", stage=1)
    await swarm.until(lambda: swarm.heads[-1].step == 1)
    assert not (await StatusReader(swarm.watcher, swarm.directory, read_goal).read()).waits_for
    await swarm.finish(within=10)
    await swarm.close()
