"""Clusters that follow lost ones begin with what those saved: the losses of a plain loop, and the same bits again."""

from copy import deepcopy
from dataclasses import replace

import pytest

from pipelined.aio.clock import run_virtual
from pipelined.errors import UsageError
from pipelined.ravnest.records.generation import GENERATION, Generation
from pipelined.ravnest.stage.orders import OrderDirectory, read_orders
from pipelined.ravnest.stage.saving import SaveSettings
from pipelined.state.stages.store import DiskStore, saved_stages
from pipelined.state.stages.versions import common_step
from tests.numerics.test_ravnest_rounds import on_loop
from tests.ravnest.faults import Fault, Phase
from tests.ravnest.story import CASE, Story, tell
from tests.ravnest.test_overlapped import OVERLAPPED, SLOW_S, TRAININGS, Plain, digest_of, recorded, replayed

BLOCKING = TRAININGS["blocking"]
FIRST = 6
"""Steps done at the first round of two clusters."""


class WhenSaved:
    """A fault that begins when all stages of a step are saved."""

    def __init__(self, path, fault, step=FIRST, seconds=0.5):
        self.path, self.fault, self.step, self.seconds = path, fault, step, seconds

    async def __call__(self, story):
        while (at := common_step(saved_stages(self.path))) is None or at.step < self.step:
            await story.sleep(0.02)
        await story.befall(self.fault, seconds=self.seconds, names=["n0", "n1"])


def lost(path, training, fault, **story):
    """The story of a run that loses its clusters after the first save, and the orders of all of them."""
    saved = path / "saved"
    saving = SaveSettings(DiskStore(saved, CASE.model.identity()), 1, "run")
    return recorded(path / "orders", training, saving=saving, then=WhenSaved(saved, fault), **story)


def plain(training, many, begin=0, state=None):
    """Clusters of plain loops that are averaged every few steps; later ones begin with a state that this returns.

    Returns: the losses by (step, cluster), and by the steps done the average and the optimizer of the first cluster.
    """
    clusters = [Plain(replace(training, start=begin), number, many) for number in range(many)]
    for each in clusters if state else ():
        each.module.load_state_dict(state[0])
        each.optimizer.load_state_dict(deepcopy(state[1]))
    states, span = {}, many * training.every
    for first in range(begin, training.steps, span):
        last = min(first + span, training.steps)
        for step in range(first, last):
            own, number = divmod(step - begin, many)
            clusters[number].update(own)
        held = [each.snapshot() for each in clusters]
        average = {name: sum(each[name] for each in held) / many for name in held[0]}
        for each in clusters:
            each.module.load_state_dict(average)
        states[last] = average, deepcopy(clusters[0].optimizer.state_dict())
    return {at: loss for each in clusters for at, loss in each.losses.items()}, states


def missing(told, losses, begun):
    """How many steps were not shown: all were done right before the loss, and are in what was saved."""
    unseen = losses.keys() - told.shown.keys()
    assert all(begun - 4 <= step < begun for step, _ in unseen), unseen
    return len(unseen)


def went_on_as_plain_loops(told, chain, training, many):
    """Whether the run has the losses of plain loops up to the save that later clusters began with, and after it."""
    begun = told.view.generation.start.step
    before, states = plain(training, many)
    after, ends = plain(training, many, begun, states[begun])
    assert begun >= FIRST and len(chain) == 2 and chain[0].end_step == begun
    for at, found in told.shown.items():
        assert found in ([before[at]], [before[at], after[at]] if at in after else []) or found == [after[at]], at
    assert missing(told, before, begun) <= 2
    assert all(told.shown[at][-1] == loss for at, loss in after.items())
    assert told.ends == [f"average {on_loop(digest_of(training, chain[0], ends[training.steps][0]))}"]
    assert any(each.startswith(f"training goes on after step {begun - 1}") for each in told.told)


def test_two_clusters_go_on_with_the_saved_average_as_plain_loops_do(tmp_path):
    told, chain = lost(tmp_path, BLOCKING, Fault.KILL_ALL)
    went_on_as_plain_loops(told, chain, BLOCKING, 2)


def test_one_cluster_goes_on_with_its_own_parameters_as_a_plain_loop_does(tmp_path):
    training = replace(BLOCKING, every=FIRST)
    told, chain = lost(tmp_path, training, Fault.KILL, nodes=2, clusters=1)
    went_on_as_plain_loops(told, chain, training, 1)
    assert told.ends == [f"average {replayed(training, chain)[0]}"]


def test_another_run_goes_on_from_what_was_saved_under_greater_numbers(tmp_path):
    short, saving = (
        replace(BLOCKING, steps=2 * FIRST),
        SaveSettings(DiskStore(tmp_path, CASE.model.identity()), 1, "run"),
    )
    first = Story(training=short, saving=saving)
    run_virtual(first.run())
    second = Story(training=BLOCKING, saving=saving, resume=True)
    run_virtual(second.run())
    _, states = plain(short, 2)
    losses, _ = plain(BLOCKING, 2, 2 * FIRST, states[2 * FIRST])
    assert {at: found for at, [found] in second.shown.items()} == losses
    assert second.view.generation.start.step == 2 * FIRST
    assert second.view.generation.number > first.view.generation.number


def test_clusters_that_follow_in_a_resumed_run_have_greater_numbers_than_those_before(tmp_path):
    """Their records, rounds and stops are told apart by the number alone."""
    saving = SaveSettings(DiskStore(tmp_path, CASE.model.identity()), 4, "run")
    run_virtual(Story(training=replace(BLOCKING, steps=FIRST), saving=saving).run())
    for manifest in tmp_path.rglob("manifest.json"):  # as after clusters that followed one another for long
        manifest.write_text(manifest.read_text().replace("run-1", "run-99"))
    story = Story(training=replace(BLOCKING, steps=4 * FIRST), saving=saving, resume=True)
    run_virtual(story.run(story.befall(Fault.KILL, phase=Phase.CONFIRMED, seconds=0.2, names=["n0", "n1"])))
    numbers = [Generation.unpack(each.entry.value).number for each in story.changes if each.key == GENERATION]
    assert numbers[:2] == [100, 101] and numbers == sorted({*numbers})


def test_a_run_that_is_to_go_on_from_what_no_node_can_read_is_refused(tmp_path):
    story = Story(
        training=BLOCKING, saving=SaveSettings(DiskStore(tmp_path, CASE.model.identity()), 1, "run"), resume=True
    )
    with pytest.raises(AssertionError, match="the nodes hold no step that all stages saved"):
        run_virtual(story.run())


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("kind", TRAININGS)
def test_the_replay_goes_through_the_saves_with_the_same_bits(tmp_path, kind):
    """Updates run beside a round, so what is saved beside its average is of the snapshot, and not of the save."""
    told, chain = lost(tmp_path, TRAININGS[kind], Fault.KILL_ALL, nodes=4, ahead=2, delay=SLOW_S)
    average, losses = replayed(TRAININGS[kind], chain)
    assert len(chain) == 2 and told.ends == [f"average {average}"]
    assert all(found[-1] == losses[at] for at, found in told.shown.items())
    missing(told, losses, told.view.generation.start.step)


def tell_and_replay(path, seed):
    saving = SaveSettings(DiskStore(path / "saved", CASE.model.identity()), 1 + seed % 2, "run")
    orders = OrderDirectory(path / "orders", "task")
    told = tell(seed, training=OVERLAPPED, ahead=1 + seed % 3, order_directory=orders, saving=saving)
    assert told.ends[-1] == f"average {replayed(OVERLAPPED, read_orders(path / 'orders'))[0]}", told.told


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("seed", range(3))
def test_after_random_faults_and_saves_the_replay_has_the_same_bits(tmp_path, seed):
    tell_and_replay(tmp_path, seed)


def test_orders_of_clusters_that_a_later_save_goes_back_to_must_be_there(tmp_path):
    lost(tmp_path, BLOCKING, Fault.KILL_ALL)
    first = min((tmp_path / "orders").iterdir(), key=lambda file: int(file.name.split("-")[0])).name.split("-")[0]
    for file in (tmp_path / "orders").glob(f"{first}-*"):
        file.unlink()
    with pytest.raises(UsageError, match=f"the orders of clusters {first} are missing"):
        read_orders(tmp_path / "orders")
