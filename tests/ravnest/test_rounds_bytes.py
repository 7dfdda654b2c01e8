"""What nodes hold at their fullest in rounds, while they save, and when others join, beside what the plan says.

Where a term of the plan does not hold, it is dropped, and the plan must then be too low: so each term is needed.
"""

import pytest

from pipelined.aio.clock import run_virtual
from pipelined.ravnest.cluster_place import ClusterPlace
from pipelined.state.stages.store import DiskStore
from tests.ravnest.counted import MODEL, TRAINING, SlowSaveSettings, WeighedStory, replace
from tests.ravnest.faults import Fault
from tests.ravnest.story import Story
from tests.ravnest.test_backups import first_of, replaced

SLOW_RATE = 2e5
"""Bytes a second of a link over which the moments of a stage take as long as some updates."""


def holds(ratios):
    """Whether the plan is at most 2 % too low and 15 % too high."""
    return all(0.98 <= ratio <= 1.15 for ratio in ratios)


def is_low(ratios):
    """Whether the plan is too low for some node."""
    return min(ratios) < 0.98


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("blocking", [False, True])
def test_two_clusters_hold_the_copies_of_a_round_and_the_first_one_what_it_saves(tmp_path, blocking):
    saving = SlowSaveSettings(DiskStore(tmp_path, MODEL.identity()), 1, "run")
    story = WeighedStory(replace(TRAINING, overlapped=not blocking), nodes=4, delay=0.03, saving=saving)
    run_virtual(story.run())
    (generation,) = story.every_generation
    rules = {"rounds": True, "blocking": blocking}
    first, second = (story.ratios(generation, number, saves=number == 0, **rules) for number in range(2))
    assert holds(first) and holds(second), (first, second)
    assert is_low(story.ratios(generation, 0, **rules)), "what is saved"
    assert is_low(story.ratios(generation, 1)), "a round"


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("blocking", [False, True])
def test_a_cluster_that_becomes_the_first_holds_what_it_saves(tmp_path, blocking):
    """So every cluster is planned with room for it: the second one saves when the first is lost."""
    saving = SlowSaveSettings(DiskStore(tmp_path, MODEL.identity()), 1, "run")
    training = replace(TRAINING, overlapped=not blocking, steps=45)
    story = WeighedStory(training, nodes=6, clusters=3, delay=0.03, saving=saving)

    async def lost():
        await story.view.wait_for(lambda: story.view.progress)
        await story.befall(Fault.LOSE, names=[story.view.generation.clusters[0][0].holder.name])

    run_virtual(story.run(lost()))
    before, *others = story.every_generation
    assert others and all(each.clusters[:2] == before.clusters[1:] for each in others)

    def fullest(**saves):
        ratios = [story.ratios(each, 0, rounds=True, blocking=blocking, **saves) for each in others]
        return [*map(min, zip(*ratios, strict=True))]

    assert holds(fullest(saves=True)), fullest(saves=True)
    assert is_low(fullest()), "what is saved"


def test_one_cluster_alone_holds_what_it_saves(tmp_path):
    saving = SlowSaveSettings(DiskStore(tmp_path, MODEL.identity()), 1, "run")
    story = WeighedStory(nodes=2, clusters=1, delay=0.03, saving=saving)
    run_virtual(story.run())
    (generation,) = story.every_generation
    ratios = story.ratios(generation, 0, saves=True)
    assert holds(ratios), ratios
    assert is_low(story.ratios(generation, 0))


def test_clusters_that_go_on_hold_no_older_stage_and_the_first_one_the_moments_for_a_late_cluster():
    async def lost(story):
        await story.view.wait_for(lambda: story.view.progress)
        await story.befall(Fault.KILL, seconds=0.3, names=[story.view.generation.clusters[1][0].holder.name])

    story = WeighedStory(replace(TRAINING, steps=40), nodes=4, delay=0.03, rate=SLOW_RATE)
    run_virtual(story.run(lost(story)))
    generation = story.every_generation[-1]
    assert generation.continuation.late_clusters == 1 and len(generation.clusters) == 2
    first, late = story.ratios(generation, 0, rounds=True, sends_moments=True), story.ratios(generation, 1, rounds=True)
    assert holds(first) and holds(late), (first, late)
    assert is_low(story.ratios(generation, 0, rounds=True)), "the moments"


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("lost_stage", [0, 1])
@pytest.mark.parametrize("blocking", [False, True])
def test_clusters_that_go_on_hold_nothing_of_a_round_in_which_another_cluster_was_lost(tmp_path, blocking, lost_stage):
    """A connection that breaks in a round ends it by an error, which knows what was averaged and saved."""

    async def lost(story):
        await story.view.wait_for(lambda: story.view.progress)
        await story.befall(Fault.KILL, seconds=0.3, names=[story.view.generation.clusters[1][lost_stage].holder.name])

    saving = SlowSaveSettings(DiskStore(tmp_path, MODEL.identity()), 1, "run")
    training = replace(TRAINING, overlapped=not blocking, steps=45)
    story = WeighedStory(training, nodes=4, delay=0.03, saving=saving)
    run_virtual(story.run(lost(story)))
    generation, rules = story.every_generation[-1], {"rounds": True, "blocking": blocking}
    assert generation.continuation.late_clusters == 1 and len(generation.clusters) == 2
    first = story.ratios(generation, 0, saves=True, sends_moments=True, **rules)
    late = story.ratios(generation, 1, **rules)
    assert holds(first) and holds(late), (first, late)


@pytest.mark.parametrize(("ram", "late"), [(5500, 0), (6500, 1)])
def test_a_late_cluster_forms_only_where_the_first_one_has_room_for_a_copy_of_its_moments(ram, late):
    """Layers of 400 bytes, of which a node holds two: 6 copies with a round, and 8 with those of the moments."""

    async def lost(story):
        await story.view.wait_for(lambda: story.view.progress)
        await story.befall(Fault.KILL, seconds=0.3, names=[story.view.generation.clusters[1][0].holder.name])

    story = Story(4, ram=ram, steps=20)
    run_virtual(story.run(lost(story)))
    first, *others = story.chain
    assert len(first.clusters) == 2 and sum(each.continuation.late_clusters for each in others) == late
    why = "no room for a copy of the moments to send (needed: 6.266 KiB, RAM: 5.371 KiB, missing: 916 B)"
    assert any(why in each for each in story.told if "without a cluster: n" in each) == (not late), story.told
    assert any(why in each for each in story.told if ": waits because n" in each) == (not late), story.told
    assert ("it waits for the average and the moments of cluster 0" in f"{story.told}") == bool(late)


def test_the_node_of_a_place_holds_the_copy_that_its_new_backup_gets(monkeypatch):
    monkeypatch.setattr("pipelined.ravnest.averaging.state_transfer.CHUNK", 4096)
    story = WeighedStory(nodes=3, clusters=1, backups=1, delay=0.02)
    run_virtual(story.run(replaced(story)))
    generation = story.every_generation[-1]
    (new,) = generation.backups
    at = [holder.name for stage in range(2) for holder in generation.holders(ClusterPlace(0, stage))].index(
        first_of(generation, new)
    )
    gives, alone = (story.ratios(generation, 0, gives=each) for each in (True, False))
    assert holds([gives[at]]) and is_low([alone[at]]), (gives, alone)
    assert holds(alone[:at] + alone[at + 1 :]), alone
