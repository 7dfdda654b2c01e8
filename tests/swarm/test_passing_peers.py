"""Peers that come, answer and go under ever new names leave nothing behind at a trainer."""

import pytest

from tests.swarm.virtual_swarm import VirtualSwarm


@pytest.mark.virtual
async def test_a_trainer_keeps_answers_of_peers_that_are_here_alone():
    swarm = VirtualSwarm(stages=1, batch=4)
    swarm.peer("anchor")
    swarm.trainer("t0", steps=10_000)
    trainer, view = swarm.trainers["t0"].trainer, swarm.trainers["t0"].view
    for number in range(5):
        name = f"passing{number}"
        swarm.peer(name)
        await swarm.until(lambda name=name: trainer.pool.replies[name] > 0)
        swarm.kill(name)
        await swarm.until(lambda name=name: name not in view.peers)
    await swarm.until(lambda: trainer.pool.replies.keys() == {"anchor"})
    assert set(trainer.report(None).replies) == {"anchor"}
    await swarm.close()
