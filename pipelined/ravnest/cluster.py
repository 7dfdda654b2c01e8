"""One node's part in its cluster: a stage of a pipeline without a flush, as a rank of a world between endpoints.

The worker, its weight versions and the agreement on each step are those of any pipeline; the schedule is `async_1f1b`
with as many microbatches alive as the clusters' record says. After each span of steps the clusters are averaged.
Imports torch.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain

from torch import nn
from torch.optim import Optimizer

from pipelined.actors.actor import Actor
from pipelined.actors.executor import Executor
from pipelined.programs.plan import Plan
from pipelined.ravnest.records import Clusters
from pipelined.ravnest.rounds import RoundLog, Rounds
from pipelined.traces.file import NullTracer, Tracer
from pipelined.training.digests import model_digest
from pipelined.training.job import JobDescription, Numerics
from pipelined.training.model import Model
from pipelined.training.optimizer import OptimizerSettings
from pipelined.training.step_report import StepReport
from pipelined.training.trainer import RankTrainer
from pipelined.training.worker import MicrobatchSource
from transports import Transport
from transports.rpc.world import Worlds

SCHEDULE = "async_1f1b"


@dataclass(frozen=True)
class ClusterTraining:
    """What all clusters train.

    Args:
        feed: the data, by step of the training and microbatch.
        steps: of the training; cluster c of C takes the steps c, c + C, c + 2C, ...
        every: steps of a cluster from one round to the next.
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

    def job(self, clusters: Clusters, number: int) -> JobDescription:
        """The pipeline of one cluster."""
        row = clusters.rows[number]
        ahead = {"ahead": ",".join(str(place.alive) for place in row)}
        return JobDescription(
            model=self.model,
            plan=Plan(SCHEDULE, len(row), 1, self.rows, self.microbatches, ahead),
            feed=EveryNth(self.feed, number, len(clusters.rows)),
            optimizer_config=EveryNthRate(self.optimizer_config, number, len(clusters.rows)),
            numerics=self.numerics,
            sequence=self.sequence,
            seed=self.seed,
            cut=tuple(range(place.first, place.end) for place in row),
        )

    def steps_of(self, number: int, clusters: int) -> range:
        """The steps of one of so many clusters, by its own count."""
        return range(len(range(number, self.steps, clusters)))

    def spans_of(self, number: int, clusters: int) -> list[range]:
        """The steps of one of so many clusters, by its own count, from one round to the next.

        All clusters have equally many spans, of which the last may be empty. One cluster has one span: no rounds.
        """
        own, most = self.steps_of(number, clusters), self.steps_of(0, clusters).stop
        every = self.every if clusters > 1 else most
        return [own[first : first + every] for first in range(0, most, every)]


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


@dataclass(frozen=True)
class ClusterMember:
    """A node in one of these clusters.

    Args:
        worlds: of its endpoint.
        tracer: records what the node did, in order.
    """

    training: ClusterTraining
    worlds: Worlds
    executor: Executor
    tracer: Tracer = field(default_factory=NullTracer)

    async def train(self, clusters: Clusters, number: int, on_step: Callable[[StepReport], None], log: RoundLog) -> str:
        """Train all steps of this node's cluster, with a round after each span of them.

        Args:
            number: of this node's cluster.
            on_step: called with each step that the cluster completed, in order.
        Returns: the digest of all parameters, on the first node of the cluster; "" on the others.
        Raises:
            TransportError: another node of the cluster left, or failed.
            AgreedError: loss or norm of a step is not finite.
        """
        name, many = f"clusters {clusters.number}", len(clusters.rows)
        addresses = [[place.address for place in row] for row in clusters.rows]
        async with AsyncExitStack() as stack:
            world = await stack.enter_async_context(_opened(self.worlds, f"{name}, {number}", addresses[number]))
            actor = await stack.enter_async_context(Actor(world))
            job = self.training.job(clusters, number)
            trainer = RankTrainer(actor, job, executor=self.executor, tracer=self.tracer)
            rounds = None
            if many > 1:
                everyone = await stack.enter_async_context(_opened(self.worlds, name, list(chain(*addresses))))
                held = trainer.local.parameters
                rounds = Rounds(
                    everyone, clusters, self.training.model, parameters=held, executor=self.executor, log=log
                )
            for span in self.training.spans_of(number, many):
                if span:
                    on_step(await trainer.train(span, on_step=on_step))
                if rounds is not None:
                    await rounds.average()
            return await model_digest(world, trainer.local)


@asynccontextmanager
async def _opened(worlds: Worlds, name: str, addresses: list[str]) -> AsyncIterator[Transport]:
    """A world that is closed after the block, or aborted where the block fails, so that no other rank waits."""
    world = await worlds.open(name, addresses)
    try:
        yield world
    except BaseException as error:
        await world.abort(f"{worlds.endpoint.address}: {str(error) or type(error).__name__}")
        raise
    await world.close()
