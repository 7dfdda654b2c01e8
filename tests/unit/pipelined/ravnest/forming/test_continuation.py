"""Clusters that end and go on: whatever is lost when, each step of the training is in the last average once."""

import random
from dataclasses import replace

import pytest

from pipelined.ravnest.cluster_place import ClusterPlace
from pipelined.ravnest.forming.continuation import Newcomers, lack_of_ram, new_backups, next_generation
from pipelined.ravnest.node.ravnest_training import RavnestTraining
from pipelined.ravnest.planning.pool import PoolNode
from pipelined.ravnest.planning.stage_sizes import LayerSize, StageRules, StageSizes
from pipelined.ravnest.records.generation import Generation
from pipelined.ravnest.records.nodes import NodeRecord
from pipelined.ravnest.records.places import Holder, StagePlace


def row(name):
    return [StagePlace(Holder(name, f"at {name}", 1), 0, 3, 1)]


def training_of(steps, every, overlapped):
    none = None
    return RavnestTraining(none, none, steps, every, 1, 1, none, none, 1, 0, overlapped=overlapped)


class Sets:
    """Each cluster as the set of the steps in its parameters."""

    def __init__(self, draw, training, many):
        self.draw, self.training = draw, training
        self.generation = Generation(1, [row(f"{n}") for n in range(many)])
        self.held, self.names = [set() for _ in range(many)], many

    def average(self, late=False):
        sets = self.held[: self.generation.established_clusters] if late else self.held
        core = set.intersection(*sets)
        assert sum(len(each - core) for each in sets) == len(set.union(*sets) - core), "a step counts twice"
        self.held = [set.union(*sets) for _ in self.held]

    def part(self):
        """Train up to some round, and beyond it; returns how many rounds stand and the own steps of each cluster."""
        generation, draw = self.generation, self.draw
        training = replace(self.training, start=generation.start.step)
        many, all_rounds = len(generation.clusters), training.rounds_of(generation)
        spans = [training.spans_of(generation, n) for n in range(many)]
        rounds = draw.choice([0, 0, 1, 2, draw.randint(0, all_rounds)]) if many > 1 else 0
        rounds = min(rounds, all_rounds)
        heard = range(many if rounds or not generation.opening_rounds else generation.established_clusters)
        own_steps = [training.own_steps_averaged(generation, n, rounds) for n in range(many)]
        if generation.opening_rounds and rounds:
            self.average(late=True)
        for at in range(max(0, rounds - generation.opening_rounds)):
            for n in range(many):
                self.train(n, spans[n][at])
            self.average()
        for n in heard:
            end = (
                spans[n][min(rounds - generation.opening_rounds, len(spans[n]) - 1)].stop
                if many > 1
                else spans[n][-1].stop
            )
            if rounds >= generation.opening_rounds or not generation.opening_rounds:
                own_steps[n] = draw.randint(own_steps[n], max(own_steps[n], end))
            self.train(n, range(training.own_steps_averaged(generation, n, rounds) if many > 1 else 0, own_steps[n]))
        return training, rounds, own_steps

    def train(self, number, steps):
        for step in (self.generation.step_of(number, own) for own in steps):
            assert step not in self.held[number]
            self.held[number].add(step)

    def go_on(self):
        training, rounds, own_steps = self.part()
        many, draw = len(self.generation.clusters), self.draw
        heard = [n for n in range(many) if rounds or n < self.generation.established_clusters]
        survivors = {draw.choice(heard)} | {n for n in range(many) if draw.random() < 0.6}
        stops = {n: training.cluster_stop(self.generation, n, own_steps[n], rounds) for n in survivors}
        late = [row(f"late {self.names + n}") for n in range(draw.choice([0, 0, 1, 2]))]
        self.names += len(late)
        next_ = next_generation(self.generation, self.generation.number + 1, rounds, stops, Newcomers(late))
        assert Generation.unpack(next_.pack()) == next_
        kept_sets = [self.held[n] for n in sorted(survivors) if n in heard]
        fresh = [n for n in sorted(survivors) if n not in heard]
        assert (
            next_.clusters
            == [self.generation.clusters[n] for n in sorted(survivors) if n in heard]
            + [self.generation.clusters[n] for n in fresh]
            + late
        )
        self.generation, self.held = next_, [*kept_sets, *(set() for _ in [*fresh, *late])]
        steps_done = set.union(*kept_sets)
        order = [
            next_.step_of(*divmod(turn, len(next_.clusters))[::-1])
            for turn in range(self.training.steps - len(steps_done))
        ]
        assert next_.start.step == len(steps_done), "the steps done before, whichever they are"
        assert sorted([*steps_done, *order]) == [*range(self.training.steps)]
        assert order == sorted(order), "what was lost comes first"


@pytest.mark.parametrize("overlapped", [False, True])
def test_whatever_is_lost_when_each_step_is_trained_and_counts_once(overlapped):
    for seed in range(300):
        draw = random.Random(seed)
        story = Sets(draw, training_of(draw.randint(0, 40), draw.randint(1, 4), overlapped), draw.randint(1, 4))
        for _ in range(draw.randint(1, 5)):
            story.go_on()


@pytest.mark.parametrize("overlapped, first", [(True, 4), (False, 2)])
def test_the_first_round_after_late_clusters_were_formed_is_twice_as_far(overlapped, first):
    """Beside training they get their moments until then; else the others wait at their next snapshot."""
    generation, training = Generation(3, [row("a"), row("b")]), training_of(18, 2, overlapped)
    next_ = next_generation(
        generation, 7, 0, {n: training.cluster_stop(generation, n, 0, 0) for n in range(2)}, Newcomers([row("c")])
    )
    assert next_.continuation.late_clusters == 1 and next_.opening_rounds == 1
    ends = [*range(first, 6, 2), 6]
    assert [[span.stop for span in training.spans_of(next_, n)] for n in range(3)] == [ends] * 3
    assert training.snapshots(next_) == [0, *ends[:-1]]
    assert [span.stop for span in training.spans_of(generation, 0)][:2] == [2, 4]


def test_what_a_lost_cluster_trained_since_the_last_round_comes_first():
    """Two clusters, a round every 2 steps; after the first (steps 0-3) one trains 4 and 6, the other 5, and is lost."""
    training, generation = training_of(12, 2, False), Generation(3, [row("a"), row("b")])
    stopped = training.cluster_stop(generation, 0, 4, 1)
    assert stopped.done == 4 and stopped.steps_since_round == [4, 6]
    next_ = next_generation(generation, 7, 1, {0: stopped}, Newcomers([row("c")]))
    assert next_.start.step == 6 and next_.continuation.steps_to_repeat == [5] and next_.continuation.late_clusters == 1
    assert [next_.step_of(0, own) for own in range(3)] == [5, 8, 10]
    assert [next_.step_of(1, own) for own in range(3)] == [7, 9, 11]


def test_what_is_in_no_average_is_given_out_again_if_its_cluster_is_lost_before_the_next_round():
    training, generation = training_of(12, 2, False), Generation(3, [row("a"), row("b"), row("c")])
    stops = {n: training.cluster_stop(generation, n, 1, 0) for n in (0, 1)}
    second = next_generation(generation, 4, 0, stops)
    assert (
        second.continuation.steps_to_repeat == []
        and second.start.step == 2
        and second.continuation.steps_since_round == [[0], [1]]
    )
    third = next_generation(second, 5, 0, {1: training.cluster_stop(second, 1, 0, 0)})
    assert third.continuation.steps_to_repeat == [0] and third.start.step == 1


@pytest.mark.parametrize("weights", ["kept", "newest"])
def test_a_new_backup_holds_all_microbatches_alive_of_its_place_or_waits(weights):
    """The pace was chosen for the RAM of the nodes that formed the cluster, and stays: a smaller node is no backup."""
    sizes = StageSizes([LayerSize(100, 4000, 2000, 1.0)] * 2, StageRules(weights, behind=2))

    def least(alive):
        """The bytes of the second layer at this pace, and what waits for two microbatches."""
        return max(int(sizes.bytes(alive, alive + 1, alive + 1)[1, 2]), sizes.receiving(1, 2)) + 2 * 2000

    for alive in (1, 6):
        places = [StagePlace(Holder("a", "at a", 1), 0, 1, alive + 1), StagePlace(Holder("b", "at b", 1), 1, 2, alive)]
        generation, alone = Generation(1, [places]), {ClusterPlace(0, 1): PoolNode("b", 1 << 20, 1.0)}
        for ram, fits in ((least(alive) - 1, False), (least(alive), True)):
            waiting = [NodeRecord("new", "at new", 2, ram, 1.0, 0.0)]
            outcome = new_backups(generation, alone, waiting, sizes)
            if fits:
                assert [(each.stage, each.room) for each in outcome] == [(1, 2)]
            else:
                assert f"room for a place and its microbatches alive ({lack_of_ram(ram + 1, ram)})" in outcome
    assert least(6) - least(1) == 5 * (400 + 4000 if weights == "kept" else 2000)


def test_what_a_new_backup_lacks_is_said():
    sizes = StageSizes([LayerSize(100, 8, 8, 1.0)], StageRules(behind=2))
    generation, waiting = Generation(1, [row("a")]), [NodeRecord("new", "at new", 2, 1 << 20, 1.0, 0.0)]
    generation = replace(generation, clusters=[[generation.clusters[0][0]._replace(end=1)]])
    small = new_backups(generation, {ClusterPlace(0, 0): PoolNode("a", 2000, 1.0)}, waiting, sizes)
    stage_bytes = StageSizes(sizes.layers, replace(sizes.rules, gives=True)).of_stages(generation.clusters[0])[0]
    assert f"because a has no room for the copy that a backup gets ({lack_of_ram(stage_bytes, 2000)})" in small
    assert new_backups(generation, {}, waiting, sizes) == "because each place has a backup"
