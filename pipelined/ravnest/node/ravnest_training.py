"""The training of the clusters of Ravnest, and each cluster's share of it: steps, data, rates, spans between rounds.

Imports torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from torch import nn
from torch.optim import Optimizer

from pipelined.programs.plan import Plan
from pipelined.ravnest.records.generation import Generation
from pipelined.ravnest.records.progress import ClusterStop
from pipelined.training.job.description import JobDescription
from pipelined.training.job.model import Model
from pipelined.training.job.numerics import Numerics
from pipelined.training.job.optimizer_settings import OptimizerSettings
from pipelined.training.job.rank_context import MicrobatchSource

SCHEDULE = "async_1f1b"


@dataclass(frozen=True)
class RavnestTraining:
    """What all clusters train.

    Args:
        feed: the data, by step of the training and microbatch.
        steps: of the training; cluster c of C takes b + c, b + c + C, b + c + 2C, ...; see `Generation.step_of`.
        start: b, the first step; those before it are done.
        every: steps of a cluster from one round to the next.
        overlapped: whether clusters train on during a round; else they drain, and wait for it.
        by_microbatches: whether a cluster counts in a round by its microbatches since the last one; else all equally.
        microbatch_size: sequences of a microbatch, B.
        microbatches: of a step, N.
        optimizer_settings: gives the rates by step of the training; it must not clip by the global norm.
    """

    model: Model
    feed: MicrobatchSource
    steps: int
    every: int
    microbatch_size: int
    microbatches: int
    optimizer_settings: OptimizerSettings
    numerics: Numerics
    sequence: int
    seed: int
    overlapped: bool = False
    by_microbatches: bool = False
    start: int = 0

    def job(self, generation: Generation, cluster: int) -> JobDescription:
        stages = generation.clusters[cluster]
        ahead = {"ahead": ",".join(str(place.alive) for place in stages)}
        return JobDescription(
            model=self.model,
            plan=Plan(SCHEDULE, len(stages), 1, self.microbatch_size, self.microbatches, knobs=ahead),
            feed=ClusterFeed(self.feed, generation, cluster),
            optimizer_settings=ClusterRates(self.optimizer_settings, generation, cluster),
            numerics=self.numerics,
            sequence=self.sequence,
            seed=self.seed,
            dropout_seed=self.seed + self.start + cluster,
            cut=tuple(range(place.first, place.end) for place in stages),
        )

    def own_steps(self, cluster: int, clusters: int) -> range:
        """The steps of one cluster of so many, by its own count."""
        return range(len(range(self.start + cluster, self.steps, clusters)))

    def spans_of(self, generation: Generation, cluster: int) -> list[range]:
        """The steps of one cluster, by its own count, from one round to the next.

        All clusters have equally many spans, of which the last may be empty. One cluster saves after each.
        Overlapped rounds begin in the middle of training, so all spans but the last are whole in every cluster. The
        first one is twice as long while a late cluster gets its moments beside it: with the round they are 3 to 4 times
        a round's bytes, and a round takes at most half a span where lines are chosen well.
        """
        clusters = len(generation.clusters)
        own_steps, most_steps, least_steps = (self.own_steps(number, clusters) for number in (cluster, 0, clusters - 1))
        last_end = max(0, len(least_steps) - 1) if self.overlapped else len(most_steps) - 1
        first_end = self.every * (2 if self.overlapped and generation.continuation.late_clusters else 1)
        ends = [0, *range(first_end, last_end + 1, self.every)]
        return [own_steps[begin:end] for begin, end in pairwise([*ends, len(own_steps)])]

    def snapshots(self, generation: Generation) -> list[int]:
        """The updates of a cluster before its snapshot, by round beside training; 0 for the opening round."""
        spans = self.spans_of(generation, 0)[:-1]
        return generation.opening_rounds * [0] + [span.stop * self.microbatches for span in spans]

    def own_steps_averaged(self, generation: Generation, cluster: int, round_: int) -> int:
        """The steps of one cluster, by its own count, that are in the average of a round; 0: of none."""
        span = round_ - 1 - generation.opening_rounds
        return 0 if span < 0 else self.spans_of(generation, cluster)[span].stop

    def steps_averaged(self, generation: Generation, round_: int) -> int:
        """The steps of the training that are done in the average of a round; of round 0: at the beginning."""
        return self.start + sum(self.own_steps_averaged(generation, n, round_) for n in range(len(generation.clusters)))

    def rounds_of(self, generation: Generation) -> int:
        """How many rounds a generation has, the opening one included."""
        return generation.opening_rounds + len(self.spans_of(generation, 0))

    def steps_by_round(self, generation: Generation) -> list[int]:
        """The steps of the training that are in the average of each round; 0: steps are missing among the first ones.

        With one cluster alone a round is what it saves after a span.
        """
        *earlier_steps, last_step = (
            self.steps_averaged(generation, round_ + 1) for round_ in range(self.rounds_of(generation))
        )
        first_gapless = max(self.start + len(generation.continuation.steps_to_repeat), self.start + 1)
        return [*(steps if steps >= first_gapless else 0 for steps in earlier_steps), last_step]

    def cluster_stop(self, generation: Generation, cluster: int, own_steps: int, rounds: int) -> ClusterStop:
        """What one cluster had done when it stopped.

        Args:
            own_steps: its steps, by its own count.
            rounds: how many are committed.
        """
        if len(generation.clusters) == 1:
            return ClusterStop(generation.number, self.start + own_steps, [])
        steps_before = generation.continuation.steps_since_round
        steps_since_round = [] if rounds or cluster >= len(steps_before) else [*steps_before[cluster]]
        steps_since_round += [
            generation.step_of(cluster, step)
            for step in range(self.own_steps_averaged(generation, cluster, rounds), own_steps)
        ]
        return ClusterStop(generation.number, self.steps_averaged(generation, rounds), steps_since_round)

    def weight(self, generation: Generation, cluster: int, round_: int, last_round: int) -> float | None:
        """The weight of one cluster in a round; None: all clusters have the same weight.

        Args:
            last_round: the last committed round before; those between them were refused.
        """
        steps_in = partial(self.own_steps_averaged, generation)
        late = generation.continuation.late_clusters
        steps = [steps_in(number, round_) - steps_in(number, last_round) for number in range(len(generation.clusters))]
        if last_round < generation.opening_rounds:
            earlier_steps = [*map(len, generation.continuation.steps_since_round), *[0] * late]
            steps = [own_steps + earlier for own_steps, earlier in zip(steps, earlier_steps, strict=True)]
        if not self.by_microbatches or not any(steps):
            steps = [1] * generation.established_clusters + [int(round_ > generation.opening_rounds)] * late
        return None if len({*steps}) == 1 else steps[cluster] / sum(steps)


@dataclass(frozen=True)
class ClusterFeed:
    """The data of one cluster: its steps of the one shuffled stream."""

    feed: MicrobatchSource
    generation: Generation
    cluster: int

    def inputs(self, step: int, microbatch: int) -> object:
        """See `MicrobatchSource`."""
        return self.feed.inputs(self.generation.step_of(self.cluster, step), microbatch)

    def targets(self, step: int, microbatch: int) -> object:
        """See `MicrobatchSource`; they are found by step and microbatch, never by an order of arrival."""
        return self.feed.targets(self.generation.step_of(self.cluster, step), microbatch)


@dataclass(frozen=True)
class ClusterRates:
    """The optimizer of one cluster: the rates are those of its steps of the training."""

    settings: OptimizerSettings
    generation: Generation
    cluster: int

    @property
    def clip(self) -> float:
        """See `OptimizerSettings`."""
        return self.settings.clip

    def build(self, parameters: Mapping[str, nn.Parameter]) -> Optimizer:
        """See `OptimizerSettings`."""
        return self.settings.build(parameters)

    def rate(self, step: int) -> float | None:
        """See `OptimizerSettings`."""
        return self.settings.rate(self.generation.step_of(self.cluster, step))
