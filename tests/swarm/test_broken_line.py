"""Lines that break again and again cost time, and nothing else."""

import random

import pytest

from tests.swarm.virtual_swarm import VirtualSwarm

pytestmark = pytest.mark.virtual

STAGES, BATCH, STEPS = 2, 8, 6


@pytest.mark.parametrize("nth", [3, 5])
async def test_a_trainer_repeats_a_report_that_was_lost(nth):
    """Every third or fifth telling is lost, and what else is on the line."""

    swarm = VirtualSwarm(STAGES, BATCH)
    for name in ("p0", "p1", "p2", "p3"):
        swarm.peer(name)
    swarm.trainer("leader", steps=STEPS)
    await swarm.until(lambda: swarm.trainers["leader"].view.leader is not None)
    swarm.trainer("other", steps=STEPS)
    told, backwards = [], []

    def hear(passing):
        if passing.kind == "REQUEST" and passing.key[1] == "backward":
            backwards.append(passing)
        if passing.kind == "REQUEST" and passing.key[1] == "work" and passing.source == "other":
            told.append(passing)
            if len(told) % nth == 0:
                swarm.network.reset("other", "leader")

    swarm.network.intercept(hear)
    await swarm.finish(within=60)
    assert len(told) > 2 * nth and len(backwards) == STEPS * BATCH * STAGES
    await swarm.close()


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(2, 20))])
async def test_steps_are_taken_though_three_frames_of_a_hundred_break_their_line(seed):
    """Between any two members; in every second swarm updates are late."""

    swarm, draw = VirtualSwarm(STAGES, BATCH, seed, delayed=bool(seed % 2)), random.Random(seed)
    for name in ("p0", "p1", "p2", "p3"):
        swarm.peer(name)
    for name in ("t0", "t1"):
        swarm.trainer(name, STEPS)
    broken = []

    def hear(passing):
        if passing.source != passing.destination and draw.random() < 0.03:
            broken.append(passing)
            swarm.network.reset(passing.source, passing.destination)

    swarm.network.intercept(hear)
    await swarm.finish(within=60)
    assert len(broken) > 20 and [head.step for head in swarm.heads] == list(range(STEPS + 1))
    await swarm.close()
