"""Validation data through a swarm: one process's loss to the bit, with any members and any faults."""

import asyncio

import pytest

from pipelined.aio.clock import run_virtual
from pipelined.swarm.records.view import SwarmView
from tests.swarm.story import Story
from tests.swarm.virtual_swarm import VirtualSwarm

pytestmark = pytest.mark.virtual

HELD_OUT = 5


async def evaluations(swarm, found):
    """Note every evaluation that the directory is told of, by where it was made, and the head that is seen with it."""
    _, directory, clock = swarm.client("auditor")
    view = SwarmView(directory, clock)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(view.follow())
        while True:
            await view.wait_for(lambda: view.evaluation is not None and view.evaluation.version not in found)
            found[view.evaluation.version] = view.evaluation.loss, view.head.version


async def trained(peers, trainers, steps=5, **rules):
    """The losses of one swarm's evaluations, by step; all of them are one process's."""
    swarm, found = VirtualSwarm(stages=2, batch=4, eval_batch=HELD_OUT, **rules), {}
    for name in range(peers):
        swarm.peer(f"p{name}", name % 2)
    swarm.start("auditor", evaluations(swarm, found))
    for name in range(trainers):
        swarm.trainer(f"t{name}", steps)
    await swarm.finish(within=60)
    await swarm.close()
    assert all(version == head for version, (_, head) in found.items()), "the step after was decided before"
    losses = {version.step: loss for version, (loss, _) in found.items()}
    assert losses == {step: swarm.reference.score(step, HELD_OUT) for step in losses}
    return losses


@pytest.mark.parametrize("every, steps", [(0, [5]), (1, [1, 2, 3, 4, 5]), (2, [2, 4, 5])])
def test_every_so_many_steps_and_at_the_end_it_is_one_process_s_loss(every, steps):
    assert sorted(run_virtual(trained(2, 1, eval_every=every))) == steps


def test_how_many_take_part_changes_nothing():
    losses = [run_virtual(trained(peers, trainers, eval_every=2)) for peers, trainers in ((2, 1), (5, 1), (4, 3))]
    assert losses[0] == losses[1] == losses[2]


class Evaluation(Story):
    """A story in which every step is evaluated, and an auditor without faults.

    Where the directory was away he may hear of an evaluation and of the step after it at once.
    """

    def __init__(self, seed):
        super().__init__(seed, eval_every=1, eval_batch=HELD_OUT)
        self.found = {}

    async def _watched(self, swarm):
        async with asyncio.TaskGroup() as tasks:
            auditing = tasks.create_task(evaluations(swarm, self.found))
            await super()._watched(swarm)
            auditing.cancel()


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_faults_change_no_evaluation(first):
    for seed in range(first, first + 10):
        story = Evaluation(seed)
        swarm = run_virtual(story.run())
        last = [version for version in story.found if version.step == story.steps]
        assert len(last) == 1, "the last step was not evaluated"
        for version, (loss, _) in story.found.items():
            assert loss == swarm.reference.score(version.step, HELD_OUT), f"another loss at step {version.step}"


async def test_a_leader_that_dies_when_only_the_evaluation_is_left_is_followed_by_another():
    swarm, found = VirtualSwarm(stages=2, batch=4, eval_batch=40), {}
    for stage in range(2):
        swarm.peer(f"p{stage}", stage)
    swarm.start("auditor", evaluations(swarm, found))
    swarm.trainer("t0", steps=2)
    await swarm.until(lambda: swarm.trainers["t0"].leader.report is not None)
    swarm.trainer("t1", steps=2)
    await swarm.until(lambda: swarm.heads and swarm.heads[-1].step == 2)
    await swarm.until(lambda: (report := swarm.trainers["t0"].leader.report) and 0 < report.left < 30)
    swarm.kill("t0")
    await swarm.finish(within=20)
    await swarm.close()
    assert [loss for loss, _ in found.values()] == [swarm.reference.score(2, 40)]
    assert swarm.heads[-1].step == 2, "it trained on after the last step"


async def test_a_trainer_that_starts_after_the_last_step_ends_at_once():
    swarm = VirtualSwarm(stages=1, batch=4, eval_batch=HELD_OUT)
    swarm.peer("p0")
    swarm.trainer("t0", steps=1)
    await swarm.finish(within=20)
    swarm.trainer("t1", steps=1)
    await swarm.finish(within=2)
    assert swarm.trainers["t1"].trainer.done == 0
    await swarm.close()
