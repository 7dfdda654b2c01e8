"""What is lost when, line by line of docs/ravnest.md."""

from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from pipelined.aio.clock import run_virtual
from pipelined.ravnest.forming import supervision
from pipelined.ravnest.node.ravnest_training import RavnestTraining
from pipelined.ravnest.records.generation import Generation
from tests.numerics.ravnest import training_of
from tests.ravnest.faults import LEASE_S, Fault, Phase
from tests.ravnest.story import CASE, OPTIMIZER, RETURN_S, STEPS, Story, tell


def happens(fault, phase, seconds):
    """A story in which a fault befalls n0, or it and n1, in this phase."""
    story = Story()
    run_virtual(story.run(story.befall(fault, phase=phase, seconds=seconds, names=["n0", "n1"])))
    return story


@pytest.mark.in_turns(8)
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("fault", Fault)
def test_the_average_has_the_bits_of_clusters_that_nothing_befell(fault, phase):
    happens(fault, phase, 2.5 * LEASE_S)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("fault", [Fault.KILL, Fault.LOSE])
@pytest.mark.parametrize("phase", [Phase.OPENING, Phase.TRAINING, Phase.ROUND])
def test_when_a_node_dies_the_other_cluster_trains_on(fault, phase):
    story = happens(fault, phase, 0.2)
    _, *others = story.chain
    assert others and all(each.continuation.previous for each in others), "no cluster went back"
    assert any("n0 left before the last step; clusters that train on: 1" in each for each in story.told)
    assert len(story.ends) == 1


def test_of_a_node_that_is_stopped_the_others_say_that_it_left():
    story = Story()
    run_virtual(story.run(story.stop("n0", 0.2)))
    ends = [each for each in story.told if "its cluster ended" in each]
    assert ends and all("(n0 left: it was stopped)" in each for each in ends), ends


def test_nodes_of_a_lost_cluster_form_a_late_one_and_all_steps_count_once():
    story = Story(4, steps=40)
    run_virtual(story.run(story.befall(Fault.KILL, phase=Phase.TRAINING, seconds=0.2, names=["n0", "n1"])))
    late = [each for each in story.chain if each.continuation.late_clusters]
    assert late and late[-1] == story.view.generation and len(late[-1].clusters) == 2
    number = late[-1].number
    assert {cluster for generation, cluster, _ in story.seen if generation == number} == {0, 1}


def test_the_first_message_of_a_cluster_that_goes_on_is_an_activation():
    """Its nodes agreed on all else before: each small message is a delay for which the pipeline stands still."""
    story, sizes = Story(4, steps=40), defaultdict(list)

    def look(event):
        if story.view.generation and event.kind == "REQUEST" and "world/message" in event.key:
            sizes[story.view.generation.number, event.source, event.destination].append(event.nbytes)

    story.network.intercept(look)
    run_virtual(story.run(story.befall(Fault.KILL, phase=Phase.TRAINING, seconds=0.2, names=["n0", "n1"])))
    _, went_on, *_ = story.chain
    first, second = (place.holder.name for place in went_on.clusters[0])
    late, other = (place.holder.name for place in went_on.clusters[1])
    (activation,) = {*sizes[went_on.number, first, second]}
    assert sizes[went_on.number, late, other][0] < activation, "a late cluster has still to agree"


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("steps", [39, 40])
def test_late_clusters_and_the_others_count_by_the_microbatches_that_they_trained(steps):
    """The average at the end has the bits of plain loops weighed by hand; see `plain_loops.weights_of`."""
    story = Story(4, steps=steps, by_microbatches=True)
    killed = [(Phase.TRAINING, ["n0", "n1"]), (Phase.CONFIRMED, ["n2", "n3"])]
    run_virtual(story.run(*(story.befall(Fault.KILL, phase=at, seconds=0.2, names=names) for at, names in killed)))
    weights = [
        {
            replace(story.training, start=each.start.step).weight(each, n, round_, round_ - 1)
            for n in range(len(each.clusters))
        }
        for each in story.chain
        for round_ in range(1, story.chain.rounds[each.number] + 1)
    ]
    assert any(each.continuation.late_clusters for each in story.chain) and {0.0, 1.0} in weights
    assert any(len(each) > 1 and not each & {0.0, 1.0} for each in weights) == (steps % 2), weights


def test_a_node_that_comes_late_forms_a_cluster_of_its_own_where_their_number_is_open():
    story = Story(1, steps=24, clusters=None)
    run_virtual(story.run(story.befall(Fault.JOIN, phase=Phase.TRAINING, seconds=0.0, names=["n0"])))
    last = story.view.generation
    assert last.continuation.late_clusters == 1 and [place.holder.name for place in last.clusters[-1]] == ["late"]


def test_train_waits_for_nodes_when_those_that_are_left_cannot_hold_the_model():
    """Each of two nodes holds two of three layers; one comes back when `train` no longer expects it."""
    story = Story(2, training=training_of(CASE, STEPS, OPTIMIZER, torch.float32), clusters=1, ram=4000)
    run_virtual(story.run(story.befall(Fault.KILL, phase=Phase.TRAINING, seconds=3 * RETURN_S, names=["n0"])))
    told = next(each for each in story.told if "waits for nodes" in each)
    assert "cannot form a cluster" in told and "missing: " in told
    assert len(story.ends) == 1 and len(story.view.generation.clusters[0]) == 2


@pytest.mark.parametrize("phase", [Phase.OPENING, Phase.TRAINING, Phase.ROUND, Phase.CONFIRMED])
def test_when_train_dies_nothing_is_lost_and_it_follows_the_same_clusters_again(phase):
    story = happens(Fault.KILL_TRAIN, phase, 0.2)
    assert len(story.ends) == 1 and story.view.generation.number == 1
    assert sum("has joined" in each for each in story.told) in (3, 6)


def test_when_train_starts_again_after_the_end_it_shows_the_average_again():
    story = Story()

    async def started_again():
        while not story.ends:
            await story.sleep(0.05)
        await story.befall(Fault.KILL_TRAIN, seconds=0.1)
        while len(story.ends) < 2:
            await story.sleep(0.05)

    run_virtual(story.run(started_again()))
    assert len(story.ends) == 2 and story.ends[0] == story.ends[1]


@pytest.mark.parametrize("fault", [Fault.RESTART_DIRECTORY, Fault.FREEZE_DIRECTORY, Fault.FREEZE, Fault.CUT_OFF])
def test_what_ends_within_a_lease_costs_time_alone(fault):
    story = happens(fault, Phase.TRAINING, LEASE_S / 4)
    assert len(story.ends) == 1 and story.view.generation.number == 1


def test_a_node_that_comes_back_is_not_in_its_old_clusters():
    """It lost its lease while it was cut off; the clusters of which it was a part ended, and none of it trained on."""
    story = happens(Fault.CUT_OFF, Phase.TRAINING, 3 * LEASE_S)
    assert len(story.ends) == 1
    assert story.view.generation.number > 1


def test_a_story_with_one_microbatch_more_than_the_limit_fails(monkeypatch):
    job = RavnestTraining.job

    def one_more(training, generation, number):
        rows = [[place._replace(alive=place.alive + 1) for place in row] for row in generation.clusters]
        return job(training, replace(generation, clusters=rows), number)

    monkeypatch.setattr(RavnestTraining, "job", one_more)
    with pytest.raises(AssertionError, match="2 microbatches are alive, not 1"):
        tell(0)


def test_a_story_in_which_two_clusters_train_a_step_fails(monkeypatch):
    monkeypatch.setattr(Generation, "step_of", lambda generation, cluster, step: generation.start.step + step)
    with pytest.raises(AssertionError, match="clusters 1: two count step 0"):
        tell(0)


def test_a_story_in_which_others_train_a_step_again_that_is_in_an_average_fails(monkeypatch):
    next_generation = supervision.next_generation

    def with_the_first(*arguments):
        found = next_generation(*arguments)
        return replace(
            found,
            continuation=found.continuation._replace(steps_to_repeat=sorted({0, *found.continuation.steps_to_repeat})),
        )

    monkeypatch.setattr(supervision, "next_generation", with_the_first)
    with pytest.raises(AssertionError, match=r"begin with \[0, .* and train again \[0, "):
        tell(2)
