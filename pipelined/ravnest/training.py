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
from pipelined.ravnest.records import Clusters, ClusterStop
from pipelined.training.job import JobDescription, Numerics
from pipelined.training.model import Model
from pipelined.training.optimizer import OptimizerSettings
from pipelined.training.rank_context import MicrobatchSource

SCHEDULE = "async_1f1b"


@dataclass(frozen=True)
class ClusterTraining:
    """What all clusters train.

    Args:
        feed: the data, by step of the training and microbatch.
        steps: of the training; cluster c of C takes b + c, b + c + C, b + c + 2C, ...; see `Clusters.step_of`.
        begin: b, the steps that are done already.
        every: steps of a cluster from one round to the next.
        overlapped: whether clusters train on during a round; else they drain, and wait for it.
        by_microbatches: whether a cluster counts in a round by its microbatches since the last one; else all equally.
        microbatch_size: sequences of a microbatch, B.
        microbatches: of a step, N.
        optimizer_config: gives the rates by step of the training; it must not clip by the global norm.
    """

    model: Model
    feed: MicrobatchSource
    steps: int
    every: int
    microbatch_size: int
    microbatches: int
    optimizer_config: OptimizerSettings
    numerics: Numerics
    sequence: int
    seed: int
    overlapped: bool = False
    by_microbatches: bool = False
    begin: int = 0

    def job(self, clusters: Clusters, number: int) -> JobDescription:
        row = clusters.rows[number]
        ahead = {"ahead": ",".join(str(place.alive) for place in row)}
        return JobDescription(
            model=self.model,
            plan=Plan(SCHEDULE, len(row), 1, self.microbatch_size, self.microbatches, knobs=ahead),
            feed=ClusterFeed(self.feed, clusters, number),
            optimizer_config=ClusterRates(self.optimizer_config, clusters, number),
            numerics=self.numerics,
            sequence=self.sequence,
            seed=self.seed,
            dropout_seed=self.seed + self.begin + number,
            cut=tuple(range(place.first, place.end) for place in row),
        )

    def steps_of(self, number: int, clusters: int) -> range:
        """The steps of one of these clusters, by its own count."""
        return range(len(range(self.begin + number, self.steps, clusters)))

    def spans_of(self, clusters: Clusters, number: int) -> list[range]:
        """The steps of one of these clusters, by its own count, from one round to the next.

        All clusters have equally many spans, of which the last may be empty. One cluster saves after each.
        Overlapped rounds begin in the middle of training, so all spans but the last are whole in every cluster. The
        first one is twice as long while a late cluster gets its moments beside it: with the round they are 3 to 4 times
        a round's bytes, and a round takes at most half a span where lines are chosen well.
        """
        many = len(clusters.rows)
        own, most, least = (self.steps_of(each, many) for each in (number, 0, many - 1))
        last = max(0, len(least) - 1) if self.overlapped else len(most) - 1
        first = self.every * (2 if self.overlapped and clusters.going.late else 1)
        ends = [0, *range(first, last + 1, self.every)]
        return [own[begin:end] for begin, end in pairwise([*ends, len(own)])]

    def snapshots(self, clusters: Clusters) -> list[int]:
        """By round beside training the updates of a cluster after which it takes its snapshot; of the opening one 0."""
        spans = self.spans_of(clusters, 0)[:-1]
        return clusters.opening * [0] + [span.stop * self.microbatches for span in spans]

    def done_at(self, clusters: Clusters, number: int, round_: int) -> int:
        """The steps of one of these clusters, by its own count, that are in the average of a round; 0: of none."""
        span = round_ - 1 - clusters.opening
        return 0 if span < 0 else self.spans_of(clusters, number)[span].stop

    def steps_at(self, clusters: Clusters, round_: int) -> int:
        """The steps of the training that are done in the average of a round; of round 0: at the beginning."""
        return self.begin + sum(self.done_at(clusters, number, round_) for number in range(len(clusters.rows)))

    def rounds_of(self, clusters: Clusters) -> int:
        """How many rounds these clusters have, the opening one included."""
        return clusters.opening + len(self.spans_of(clusters, 0))

    def steps_by_round(self, clusters: Clusters) -> list[int]:
        """The steps of the training that are in the average of each round; 0: steps are missing among the first ones.

        With one cluster alone a round is what it saves after a span.
        """
        *earlier, last = (self.steps_at(clusters, number + 1) for number in range(self.rounds_of(clusters)))
        whole = max(self.begin + len(clusters.going.steps_to_repeat), self.begin + 1)
        return [*(steps if steps >= whole else 0 for steps in earlier), last]

    def stopped(self, clusters: Clusters, number: int, done: int, rounds: int) -> ClusterStop:
        """What one of these clusters had done when it stopped.

        Args:
            done: its steps, by its own count.
            rounds: how many are committed.
        """
        if len(clusters.rows) == 1:
            return ClusterStop(clusters.number, self.begin + done, [])
        before = clusters.going.steps_since_round
        since = [] if rounds or number >= len(before) else [*before[number]]
        since += [clusters.step_of(number, own) for own in range(self.done_at(clusters, number, rounds), done)]
        return ClusterStop(clusters.number, self.steps_at(clusters, rounds), since)

    def weight(self, clusters: Clusters, number: int, round_: int, last: int) -> float | None:
        """The weight of one of these clusters in a round; None: that of each is the same.

        Args:
            last: the last committed round before; those between them were refused.
        """
        done, late = partial(self.done_at, clusters), len(clusters.rows) - clusters.established
        steps = [done(each, round_) - done(each, last) for each in range(len(clusters.rows))]
        if last < clusters.opening:
            since = [*map(len, clusters.going.steps_since_round), *[0] * late]
            steps = [own + before for own, before in zip(steps, since, strict=True)]
        if not self.by_microbatches or not any(steps):
            steps = [1] * clusters.established + [int(round_ > clusters.opening)] * late
        return None if len({*steps}) == 1 else steps[number] / sum(steps)


@dataclass(frozen=True)
class ClusterFeed:
    """The data of one cluster: its steps of the one shuffled stream."""

    feed: MicrobatchSource
    clusters: Clusters
    number: int

    def inputs(self, step: int, microbatch: int) -> object:
        """See `MicrobatchSource`."""
        return self.feed.inputs(self.clusters.step_of(self.number, step), microbatch)

    def targets(self, step: int, microbatch: int) -> object:
        """See `MicrobatchSource`; they are found by step and microbatch, never by an order of arrival."""
        return self.feed.targets(self.clusters.step_of(self.number, step), microbatch)


@dataclass(frozen=True)
class ClusterRates:
    """The optimizer of one cluster: the rates are those of its steps of the training."""

    settings: OptimizerSettings
    clusters: Clusters
    number: int

    @property
    def clip(self) -> float:
        """See `OptimizerSettings`."""
        return self.settings.clip

    def build(self, parameters: Mapping[str, nn.Parameter]) -> Optimizer:
        """See `OptimizerSettings`."""
        return self.settings.build(parameters)

    def rate(self, step: int) -> float | None:
        """See `OptimizerSettings`."""
        return self.settings.rate(self.clusters.step_of(self.number, step))
