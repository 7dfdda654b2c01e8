"""A swarm that nothing befalls equals one process to the bit."""

import pytest

from apps.swarm.config import read_goal
from pipelined.swarm.status.reader import StatusReader
from tests.swarm.virtual_swarm import VirtualSwarm


@pytest.mark.virtual
@pytest.mark.parametrize("stages, replicas, trainers", [(1, 1, 1), (2, 2, 1), (3, 3, 2)])
async def test_a_swarm_equals_one_process(stages, replicas, trainers):
    swarm = VirtualSwarm(stages)
    for at in range(stages * replicas):
        swarm.peer(f"p{at}")
    for at in range(trainers):
        swarm.trainer(f"t{at}", steps=3)
    await swarm.finish(within=20)
    heads = [trainer.view.head for trainer in swarm.trainers.values()]
    assert all(head.step == 3 and head.loss == swarm.reference.losses[2] for head in heads)
    assert sorted(map(len, heads[0].members)) == [replicas] * stages
    await swarm.close()


@pytest.mark.virtual
async def test_status_shows_no_failure_of_a_swarm_in_which_no_member_failed():
    swarm = VirtualSwarm(stages=1)
    swarm.peer("p0")
    swarm.trainer("t0", steps=3)
    await swarm.until(lambda: swarm.heads and swarm.heads[-1].step >= 1)
    endpoint, directory, _ = swarm.client("look")
    assert (await StatusReader(endpoint, directory, read_goal).read()).to_dict()["last_failure"] == ""
    await swarm.finish(within=20)
    await swarm.close()
