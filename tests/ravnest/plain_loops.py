"""What clusters train that end and go on: plain loops over one module for each cluster, averaged by hand.

The timing of a run decides which clusters there were, where each stopped, and which rounds stood; `Chain` takes that
from the directory's records, and computes everything else anew. Rounds are blocking, one microbatch is a step, one is
alive, and nothing is saved.
"""

from collections import defaultdict
from copy import deepcopy
from dataclasses import replace

import torch

from pipelined.ravnest.records.generation import GENERATION, Generation
from pipelined.ravnest.records.places import Holder, StagePlace
from pipelined.ravnest.records.progress import ROUND, STOPPED, ClusterStop, RoundRecord
from pipelined.training.digests import model_digest
from pipelined.training.optimizer import update
from tests.numerics.test_ravnest_rounds import on_loop
from tests.numerics.trained import opened
from transports.local import world


class Loop:
    """One cluster: one module, and a loop that updates it after each step.

    Attributes:
        steps: of the training, that are in its parameters.
    """

    def __init__(self, training):
        self.training, self.steps = training, set()
        self.module = training.model.build(range(training.model.layers), torch.float32, "cpu", seed=training.seed)
        self.parameters = dict(self.module.named_parameters())
        self.optimizer = training.optimizer_settings.build(self.parameters)

    def train(self, step):
        assert step not in self.steps, f"step {step} is trained twice"
        self.steps.add(step)
        loss = self.training.model.loss(
            self.module(self.training.feed.inputs(step, 0)), self.training.feed.targets(step, 0)
        )
        self.optimizer.zero_grad()
        loss.backward()
        update(self.optimizer, self.training.optimizer_settings.rate(step), 1.0)
        return float(loss.detach())


def weights_of(loops):
    """By the steps that each trained since its last average, all of which every loop has; equal if there are none."""
    common = set.intersection(*(each.steps for each in loops))
    since = [len(each.steps - common) for each in loops]
    return [each / sum(since) for each in since] if len({*since}) > 1 else None


@torch.no_grad()
def average(loops, late=()):
    """Give all loops the mean of the first ones; late ones begin with it, and with the first one's optimizer."""
    weights = weights_of(loops) if loops[0].training.by_microbatches else None
    for name in loops[0].parameters:
        values = [each.parameters[name] for each in loops]
        mean = sum(values) / len(loops)
        if weights is not None:
            mean = sum(weight * value for weight, value in zip(weights, values, strict=True))
        for each in [*loops, *late]:
            each.parameters[name].copy_(mean)
    for each in late:
        each.optimizer.load_state_dict(deepcopy(loops[0].optimizer.state_dict()))
    counted = sum(len(each.steps) for each in loops) - (len(loops) - 1) * len(
        set.intersection(*(e.steps for e in loops))
    )
    steps = set.union(*(each.steps for each in loops))
    assert len(steps) == counted, "a step counts twice in an average"
    for each in [*loops, *late]:
        each.steps = set(steps)


class Chain:
    """The records of a run in the directory, and what plain loops make of them.

    Args:
        changes: of the keys below, in order, as a view saw them.
    """

    keys = (GENERATION, ROUND, STOPPED)

    def __init__(self, training, changes):
        self.training, self.generations, self.rounds, self.stops = training, {}, defaultdict(int), defaultdict(dict)
        self.refused = defaultdict(set)
        for change in changes:
            if change.entry is None:
                continue
            if change.key == GENERATION:
                found = Generation.unpack(change.entry.value)
                self.generations[found.number] = found
            elif change.key == ROUND:
                found = RoundRecord.unpack(change.entry.value)
                self.rounds[found.generation] = found.number
                self.refused[found.generation] = {number for number, _ in found.refused}
            else:
                found = ClusterStop.unpack(change.entry.value)
                self.stops[found.generation][int(change.key.removeprefix(STOPPED))] = found

    def __iter__(self):
        return iter(sorted(self.generations.values(), key=lambda each: each.number))

    def trained(self, shown):
        """Train everything again.

        Args:
            shown: by number of the clusters, and cluster, the steps that it was seen to train.
        Returns: the losses, by number of clusters, cluster and step, and the digest of the average at the end.
        """
        losses, loops, before = {}, [], None
        for generation in self:
            kept = {generation.place_before(before, n): loop for n, loop in enumerate(loops)} if before else {}
            loops = [
                kept[at]
                if generation.continuation.previous and at < generation.established_clusters
                else Loop(self.training)
                for at in range(len(generation.clusters))
            ]
            self._train(generation, loops, losses, shown)
            before = generation
        found = set.union(*(each.steps for each in loops))
        assert found == set(range(self.training.steps)), f"steps in the average: {sorted(found)}"
        return losses, digest_of(self.training, loops[0].parameters)

    def _train(self, generation, loops, losses, shown):
        training = replace(self.training, start=generation.start.step)
        many, last = len(loops), generation.number == max(self.generations)
        rounds = training.rounds_of(generation) if last else self.rounds[generation.number]
        refused = self.refused[generation.number]
        if generation.opening_rounds and rounds and 1 not in refused:
            average(loops[: generation.established_clusters], loops[generation.established_clusters :])
        limits = [self._limit(training, generation, number, rounds, last, shown) for number in range(many)]
        spans = [training.spans_of(generation, number) for number in range(many)]
        for at in range(len(spans[0])):
            for number, loop in enumerate(loops):
                for own in spans[number][at]:
                    if own < limits[number]:
                        step = generation.step_of(number, own)
                        losses[generation.number, number, step] = loop.train(step)
            number = at + 1 + generation.opening_rounds
            if many > 1 and number <= rounds and number not in refused:
                average(loops)

    def _limit(self, training, generation, number, rounds, last, shown):
        """How many steps a cluster trained, by its own count."""
        everything = len(training.own_steps(number, len(generation.clusters)))
        if last:
            return everything
        seen = shown.get((generation.number, number), set())
        many = [own + 1 for own in range(everything) if generation.step_of(number, own) in seen]
        stopped = self.stops[generation.number].get(number)
        if stopped is not None and len(generation.clusters) == 1:
            many.append(stopped.done - generation.start.step)
        elif stopped is not None:
            before = (
                0
                if rounds or number >= generation.established_clusters
                else len((*generation.continuation.steps_since_round, *[[]] * 99)[number])
            )
            many.append(
                training.own_steps_averaged(generation, number, rounds) + len(stopped.steps_since_round) - before
            )
        elif rounds:
            many.append(training.own_steps_averaged(generation, number, rounds))
        return max(many, default=0)


def digest_of(training, values):
    """The digest of these parameters, as a run prints it."""
    generation = Generation(1, [[StagePlace(Holder("a", "a", 1), 0, training.model.layers, 1)]])

    async def digest():
        async with opened(world(1)[0], training.job(generation, 0)) as trainer:
            for name, value in values.items():
                trainer.local.parameters[name].data.copy_(value.detach())
            return await model_digest(trainer.context.actor.transport, trainer.local)

    return on_loop(digest())
