"""Nodes that share no file system: each saves in a directory of its own, and gives the others what they need of it."""

from dataclasses import replace

import pytest

from pipelined.aio.clock import run_virtual
from pipelined.ravnest.stage.orders import OrderDirectory, read_orders
from pipelined.ravnest.stage.saving import SaveSettings
from pipelined.state.stages.store import DiskStore, saved_stages
from pipelined.state.stages.versions import common_step
from tests.ravnest.faults import Fault
from tests.ravnest.story import CASE, Story, tell
from tests.ravnest.test_going_on import BLOCKING, FIRST, plain, went_on_as_plain_loops
from tests.ravnest.test_overlapped import OVERLAPPED, recorded, replayed

NAMES = ["n0", "n1", "n2"]


def own(path, names=NAMES, every=1):
    """Where each node saves: in a directory of its name."""
    return {name: SaveSettings(DiskStore(path / name, CASE.model.identity()), every, "run") for name in names}


def held(path):
    return [each for name in NAMES for each in saved_stages(path / name)]


def first_run(path):
    """One cluster of three nodes that saves once, at its end; returns a plain loop's state then."""
    training = replace(BLOCKING, steps=FIRST, every=FIRST)
    run_virtual(Story(training=training, clusters=1, saving=own(path)).run())
    assert all(common_step(saved_stages(path / name)) is None for name in NAMES), "no node holds every stage"
    return plain(training, 1)[1][FIRST]


@pytest.mark.parametrize("names", [NAMES, ["n2", "n0", "n1"]])
def test_another_run_cut_anew_begins_with_what_the_nodes_hold_together(tmp_path, names):
    """Also where each node finds in its directory what another one saved."""
    state, saving = first_run(tmp_path), own(tmp_path)
    moved = {**dict(zip(NAMES, (saving[name] for name in names), strict=True)), "n3": None}
    story = Story(4, training=BLOCKING, clusters=2, saving=moved, resume=True)
    run_virtual(story.run())
    losses, _ = plain(BLOCKING, 2, FIRST, state)
    assert story.view.generation.start.step == FIRST
    assert {at: found for at, [found] in story.shown.items()} == losses


class WhenSavedByAll:
    def __init__(self, path, fault):
        self.path, self.fault = path, fault

    async def __call__(self, story):
        while common_step(held(self.path)) is None:
            await story.sleep(0.02)
        await story.befall(self.fault, seconds=0.5, names=["n0", "n1"])


def test_clusters_after_lost_ones_begin_with_what_their_nodes_hold_together(tmp_path):
    fault, saving = WhenSavedByAll(tmp_path, Fault.KILL_ALL), own(tmp_path)
    told, chain = recorded(tmp_path / "orders", BLOCKING, saving=saving, then=fault)
    went_on_as_plain_loops(told, chain, BLOCKING, 2)
    assert told.ends == [f"average {replayed(BLOCKING, chain)[0]}"]


def test_a_damaged_stage_is_not_offered_any_more_and_an_older_step_is_taken(tmp_path):
    state, saving = first_run(tmp_path), own(tmp_path)
    longer = replace(BLOCKING, steps=2 * FIRST, every=FIRST)
    run_virtual(Story(training=longer, clusters=1, saving=saving, resume=True).run())
    assert common_step(held(tmp_path)).step == 2 * FIRST
    damaged = next(tmp_path.glob(f"*/stage-*/step-*{2 * FIRST}/*.safetensors"))
    damaged.write_bytes(damaged.read_bytes()[:-4] + b"\7" * 4)
    story = Story(training=BLOCKING, clusters=2, saving=saving, resume=True)
    run_virtual(story.run())
    assert any("no node gives" in each for each in story.told) and story.view.generation.start.step == FIRST
    assert {at: found for at, [found] in story.shown.items()} == plain(BLOCKING, 2, FIRST, state)[0]


def test_a_resume_without_the_node_that_saved_a_stage_is_refused(tmp_path):
    first_run(tmp_path)
    saving = {**own(tmp_path), "n0": None}
    with pytest.raises(AssertionError, match=r"the nodes hold no step that all stages saved \(held: .*; start all"):
        run_virtual(Story(training=BLOCKING, saving=saving, resume=True).run())


def test_a_training_that_begins_again_for_want_of_a_stage_says_what_prevents_it(tmp_path):
    first_run(tmp_path)
    story = Story(training=BLOCKING, saving={**own(tmp_path), "n0": None})
    run_virtual(story.run())
    (said,) = [each for each in story.told if "training begins at step 0" in each]
    assert said.endswith("; against another loss, let all nodes share one --checkpoint, or add --backups")


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("seed", range(2))
def test_after_random_faults_the_replay_has_the_same_bits(tmp_path, seed):
    saving = own(tmp_path, ["n0", "n1", "n2", "n3"], every=1 + seed % 2)
    orders = OrderDirectory(tmp_path / "orders", "task")
    told = tell(seed, training=OVERLAPPED, ahead=1 + seed % 3, order_directory=orders, saving=saving)
    assert told.ends[-1] == f"average {replayed(OVERLAPPED, read_orders(tmp_path / 'orders'))[0]}", told.told
