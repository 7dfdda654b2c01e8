"""What the clusters of Ravnest train, and each cluster's share of it: steps, data, rates, and spans between rounds.

Imports torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from pipelined.programs.plan import Plan
from pipelined.ravnest.records import Clusters
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
        steps: of the training; cluster c of C takes the steps b + c, b + c + C, b + c + 2C, ...
        begin: b, the steps that are done already.
        every: steps of a cluster from one round to the next.
        overlapped: whether clusters train on during a round; else they drain, and wait for it.
        by_microbatches: whether a cluster counts in a round by its microbatches since the last one; else all equally.
        rows: sequences of a microbatch, B.
        microbatches: of a step, N.
        optimizer_config: gives the rates by step of the training; it must not clip by the global norm.
    """

    model: Model
    feed: MicrobatchSource
    steps: int
    every: int
    rows: int
    microbatches: int
    optimizer_config: OptimizerSettings
    numerics: Numerics
    sequence: int
    seed: int
    overlapped: bool = False
    by_microbatches: bool = False
    begin: int = 0

    def job(self, clusters: Clusters, number: int) -> JobDescription:
        """The pipeline of one cluster."""
        row = clusters.rows[number]
        ahead = {"ahead": ",".join(str(place.alive) for place in row)}
        return JobDescription(
            model=self.model,
            plan=Plan(SCHEDULE, len(row), 1, self.rows, self.microbatches, ahead),
            feed=EveryNth(self.feed, self.begin + number, len(clusters.rows)),
            optimizer_config=EveryNthRate(self.optimizer_config, self.begin + number, len(clusters.rows)),
            numerics=self.numerics,
            sequence=self.sequence,
            seed=self.seed,
            dropout_seed=self.seed + self.begin + number,
            cut=tuple(range(place.first, place.end) for place in row),
        )

    def steps_of(self, number: int, clusters: int) -> range:
        """The steps of one of these clusters, by its own count."""
        return range(len(range(self.begin + number, self.steps, clusters)))

    def spans_of(self, number: int, clusters: int) -> list[range]:
        """The steps of one of these clusters, by its own count, from one round to the next.

        All clusters have equally many spans, of which the last may be empty. One cluster saves after each.
        Overlapped rounds begin in the middle of training, so all spans but the last are whole in every cluster.
        """
        own, most, least = (self.steps_of(each, clusters) for each in (number, 0, clusters - 1))
        last = max(0, len(least) - 1) if self.overlapped else len(most) - 1
        ends = range(self.every, last + 1, self.every)
        return [own[max(0, end - self.every) : end] for end in ends] + [own[len(ends) * self.every :]]

    def steps_by_round(self, clusters: int) -> list[int]:
        """The steps of the training that are completed before each round."""
        spans = zip(*(self.spans_of(each, clusters) for each in range(clusters)), strict=True)
        return [self.begin + sum(span.stop for span in each) for each in spans]

    def weight(self, number: int, clusters: int, span: int) -> float | None:
        """The weight of one of these clusters in the round after a span; None: that of each is the same."""
        if not self.by_microbatches:
            return None
        steps = [len(self.spans_of(each, clusters)[span]) for each in range(clusters)]
        return None if len({*steps}) == 1 else steps[number] / sum(steps)


@dataclass(frozen=True)
class EveryNth:
    """The data of one cluster: of the one shuffled stream every C-th step, from its own number on."""

    feed: MicrobatchSource
    first: int
    every: int

    def inputs(self, step: int, microbatch: int) -> object:
        """See `MicrobatchSource`."""
        return self.feed.inputs(self.first + step * self.every, microbatch)

    def targets(self, step: int, microbatch: int) -> object:
        """See `MicrobatchSource`; they are found by step and microbatch, never by an order of arrival."""
        return self.feed.targets(self.first + step * self.every, microbatch)


@dataclass(frozen=True)
class EveryNthRate:
    """The optimizer of one cluster: the rates are those of its steps of the training."""

    settings: OptimizerSettings
    first: int
    every: int

    @property
    def clip(self) -> float:
        """See `OptimizerSettings`."""
        return self.settings.clip

    def build(self, parameters: Mapping[str, nn.Parameter]) -> Optimizer:
        """See `OptimizerSettings`."""
        return self.settings.build(parameters)

    def rate(self, step: int) -> float | None:
        """See `OptimizerSettings`."""
        return self.settings.rate(self.first + step * self.every)
