"""A skip over two stages: its tensor goes straight to the node that reads it, and its gradient straight back."""

from collections import Counter

import pytest
import torch

from pipelined.aio.clock import run_virtual
from pipelined.ravnest.cluster_place import ClusterPlace
from pipelined.training.optimizer import update
from tests.ravnest.faults import Fault
from tests.ravnest.plain_loops import digest_of
from tests.ravnest.story import Story
from tests.ravnest.test_overlapped import recorded, replayed
from tests.ravnest.test_rows_of_layers import OPTIMIZER, ROWS, STEPS, WIDTH, training

TENSOR = ROWS * WIDTH * 4
"""Bytes of the output of one layer, and of the skip."""


def plain(job):
    """The losses of one module and one loop, and its parameters at the end."""
    module = job.model.build(range(job.model.layers), job.numerics.dtype, "cpu", seed=job.seed)
    optimizer, losses = OPTIMIZER.build(dict(module.named_parameters())), {}
    for step in range(job.steps):
        loss = job.model.loss(module(job.feed.inputs(step, 0)), job.feed.targets(step, 0))
        optimizer.zero_grad()
        loss.backward()
        update(optimizer, OPTIMIZER.rate(step), 1.0)
        losses[step, 0] = loss.item()
    return losses, dict(module.named_parameters())


class Counted(Story):
    """One cluster of four nodes, a layer on each; counts bytes by the stages that send and receive them.

    Attributes:
        waiting: the most microbatches that the last node had of the first one, and had not sent back.
    """

    def __init__(self, nodes=4, dtype=torch.float32, **others):
        super().__init__(nodes, clusters=1, training=training(dtype=dtype), **others)
        self.bytes, self.waiting = Counter(), 0
        self.network.intercept(self._count)

    def _count(self, event):
        if "world/message" in event.key and event.nbytes and event.nbytes % TENSOR == 0:  # the rest is agreement
            self.bytes[self.stage_of(event.source), self.stage_of(event.destination)] += event.nbytes
            self.waiting = max(self.waiting, (self.bytes[0, 3] - self.bytes[3, 0]) // TENSOR)

    def stage_of(self, name):
        generation = self.view.generation
        return next(
            stage for stage in range(4) if name in [each.name for each in generation.holders(ClusterPlace(0, stage))]
        )


LINKS = [(0, 1), (1, 2), (2, 3), (0, 3)]
"""Between neighbours, and between the two ends of the skip."""


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("ahead", [1, 4])
def test_a_node_between_neither_receives_nor_sends_what_it_does_not_read(ahead):
    story = Counted(ahead=ahead)
    run_virtual(story.run())
    assert story.bytes == {link: STEPS * TENSOR for a, b in LINKS for link in ((a, b), (b, a))}


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("ahead", [1, 4, 6])
def test_as_many_wait_where_it_is_read_as_are_alive_where_it_is_given(ahead):
    story = Counted(ahead=ahead, delay=0.2)
    run_virtual(story.run())
    assert story.view.generation.clusters[0][0].alive == ahead == story.waiting


def test_with_a_backup_for_each_place_it_goes_to_both_nodes_that_read_it():
    story = Counted(8, backups=4)
    run_virtual(story.run())
    assert story.bytes == {link: 4 * STEPS * TENSOR for a, b in LINKS for link in ((a, b), (b, a))}
    assert_plain(story)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_losses_and_parameters_are_those_of_a_loop_to_the_bit(dtype):
    story = Counted(dtype=dtype)
    run_virtual(story.run())
    assert_plain(story)


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("fault", [Fault.KILL, Fault.FREEZE, Fault.CUT_OFF])
@pytest.mark.parametrize("moment", [0.1, 0.5])
def test_a_node_between_that_leaves_beside_its_backup_changes_no_bit(fault, moment):
    story = Counted(8, backups=4)
    run_virtual(story.run(at_a_node_between(story, fault, moment)))
    assert all(len(losses) == 1 for losses in story.shown.values()), "a step was trained again"
    assert_plain(story)


@pytest.mark.parametrize("fault", [Fault.KILL, Fault.RESET])
def test_a_cluster_that_loses_a_node_between_trains_again_with_the_same_bits(fault):
    story = Counted()
    run_virtual(story.run(at_a_node_between(story, fault, 0.3)))
    assert any(len(losses) == 2 for losses in story.shown.values()), "the cluster was not lost"
    assert_plain(story)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("ahead", [2, 4])
def test_with_several_microbatches_alive_the_replay_has_the_same_bits(tmp_path, ahead):
    job = training(microbatches=2)
    told, orders = recorded(tmp_path, job, nodes=4, clusters=1, ahead=ahead)
    average, losses = replayed(job, orders)
    assert told.ends == [f"average {average}"]
    assert {at: found for at, [found] in told.shown.items()} == losses


async def at_a_node_between(story, fault, moment):
    await story.view.wait_for(lambda: story.view.progress)
    names = [story.view.generation.clusters[0][stage].holder.name for stage in (1, 2)]
    await story.befall(fault, moment=moment, seconds=2.5, names=names)


def assert_plain(story):
    losses, final = plain(story.training)
    assert {at: {*found} for at, found in story.shown.items()} == {at: {loss} for at, loss in losses.items()}
    assert story.ends == [f"average {digest_of(story.training, final)}"]
