"""One node's part in its cluster: a stage of a pipeline without a flush, as a rank of a world between endpoints.

The worker, its weight versions and the agreement on each step are those of any pipeline; the schedule is `async_1f1b`
with as many microbatches alive as the clusters' record says. After each span of steps the clusters are averaged.
Imports torch.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from torch import nn
from torch.optim import Optimizer

from pipelined.actors.actor import Actor
from pipelined.actors.executor import Executor
from pipelined.aio.nursery import Nursery
from pipelined.programs.plan import Plan
from pipelined.ravnest.orders import NodeOrder, OrderDirectory, OrderTracer
from pipelined.ravnest.overlapped import OverlappedRounds
from pipelined.ravnest.records import Clusters
from pipelined.ravnest.rounds import RoundLog, Rounds, flat_copy
from pipelined.ravnest.saving import Saving, StageSaver
from pipelined.state.versions import SavedStage
from pipelined.traces.file import NullTracer, Tracer
from pipelined.training.digests import model_digest
from pipelined.training.job import JobDescription, Numerics
from pipelined.training.model import Model
from pipelined.training.optimizer import OptimizerSettings
from pipelined.training.rank_context import MicrobatchSource
from pipelined.training.step_report import StepReport
from pipelined.training.trainer import RankTrainer
from transports import Transport

SCHEDULE = "async_1f1b"


@dataclass(frozen=True)
class ClusterTraining:
    """What all clusters train.

    Args:
        feed: the data, by step of the training and microbatch.
        steps: of the training; cluster c of C takes the steps c, c + C, c + 2C, ...
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
        """The steps of one of these clusters, by its own count."""
        return range(len(range(number, self.steps, clusters)))

    def spans_of(self, number: int, clusters: int) -> list[range]:
        """The steps of one of these clusters, by its own count, from one round to the next.

        All clusters have equally many spans, of which the last may be empty. One cluster has one span: no rounds.
        Overlapped rounds begin in the middle of training, so all spans but the last are whole in every cluster.
        """
        own, most, least = (self.steps_of(each, clusters) for each in (number, 0, clusters - 1))
        if clusters == 1:
            return [own]
        last = max(0, len(least) - 1) if self.overlapped else len(most) - 1
        ends = range(self.every, last + 1, self.every)
        return [own[max(0, end - self.every) : end] for end in ends] + [own[len(ends) * self.every :]]

    def steps_by_round(self, clusters: int) -> list[int]:
        """The steps of the training that are completed before each round; of one cluster, before the end."""
        spans = zip(*(self.spans_of(each, clusters) for each in range(clusters)), strict=True)
        return [sum(span.stop for span in each) for each in spans]

    def weight(self, number: int, clusters: int, span: int) -> float | None:
        """The weight of one of these clusters in the round after a span; None: that of each is the same."""
        if not self.by_microbatches:
            return None
        steps = [len(self.spans_of(each, clusters)[span]) for each in range(clusters)]
        return steps[number] / sum(steps)


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


class OpensWorlds(Protocol):
    """Opens the worlds of one node: over its endpoint (`transports.rpc.world.Worlds`), or in this process."""

    async def open(self, name: str, addresses: Sequence[str]) -> Transport:
        """A rank of a world; see `Worlds.open`."""


@dataclass(frozen=True)
class ClusterMember:
    """A node in one of these clusters.

    Args:
        worlds: of this node.
        tracer: records what the node does, in order.
        orders: keeps the orders of its clusters; None: they are not kept.
        order: what to do again; None: what the schedule says.
        saving: where to save; None: nothing is saved.
    """

    training: ClusterTraining
    worlds: OpensWorlds
    executor: Executor
    tracer: Tracer = field(default_factory=NullTracer)
    orders: OrderDirectory | None = None
    order: NodeOrder | None = None
    saving: Saving | None = None

    async def train(
        self, clusters: Clusters, place: tuple[int, int], on_step: Callable[[StepReport], None], log: RoundLog
    ) -> str:
        """Train all steps of this node's cluster, with a round after each span of them.

        Args:
            place: the number of this node's cluster, and its stage.
            on_step: called with each step that the cluster completed, in order.
        Returns: the digest of all parameters, on the first node of the cluster; "" on the others.
        Raises:
            TransportError: another node of the cluster left, or failed.
            AgreedError: loss or norm of a step is not finite.
        """
        (number, stage), many = place, len(clusters.rows)
        name, addresses = f"clusters {clusters.number}", [[place.address for place in row] for row in clusters.rows]
        tracer = OrderTracer(self.training.microbatches) if self.orders else self.tracer
        async with AsyncExitStack() as stack:
            world = await stack.enter_async_context(_opened(self.worlds, f"{name}, {number}", addresses[number]))
            actor = await stack.enter_async_context(Actor(world))
            job = self.training.job(clusters, number)
            orders = self.order.of_stage(stage) if self.order else None
            trainer = RankTrainer(actor, job, executor=self.executor, tracer=tracer, orders=orders)
            async with Nursery() as writes:
                saver, held = self._saver(writes, clusters, place, trainer), trainer.local.parameters
                if many == 1:
                    added = await self._train_alone(trainer, saver, on_step)
                else:
                    everyone = await stack.enter_async_context(_opened(self.worlds, name, list(chain(*addresses))))
                    model, executor = self.training.model, self.executor
                    rounds = Rounds(everyone, clusters, model, parameters=held, executor=executor, log=log, saver=saver)
                    train = self._train_beside if self.training.overlapped else self._train_between
                    added = await train(trainer, rounds, number, many, on_step)
            digest = await model_digest(world, trainer.local)
        if self.orders and isinstance(tracer, OrderTracer):
            self.orders.write(clusters, place, NodeOrder(tuple(tracer.instructions), added))
        return digest

    def _saver(
        self, writes: Nursery, clusters: Clusters, place: tuple[int, int], trainer: RankTrainer
    ) -> StageSaver | None:
        """Saves this node's stage; None: it is not to be saved."""
        (number, stage), saving = place, self.saving
        if saving is None or number > 0:
            return None
        at = SavedStage(0, stage, len(clusters.rows[0]), f"{saving.run}-{clusters.number}")
        return StageSaver(
            writes,
            saving,
            at,
            steps=self.training.steps_by_round(len(clusters.rows)),
            parameters=trainer.local.parameters,
            optimizer=trainer.optimizer,
            executor=self.executor,
        )

    async def _train_alone(
        self, trainer: RankTrainer, saver: StageSaver | None, on_step: Callable[[StepReport], None]
    ) -> Mapping[int, int]:
        """Train all steps in the only cluster."""
        on_step(await trainer.train(self.training.steps_of(0, 1), on_step=on_step))
        if saver is not None:
            await saver.save(1, flat_copy(trainer.local.parameters.values()))
        return {}

    async def _train_between(
        self, trainer: RankTrainer, rounds: Rounds, number: int, many: int, on_step: Callable[[StepReport], None]
    ) -> Mapping[int, int]:
        """Train span by span, and drain for the round after each."""
        for index, span in enumerate(self.training.spans_of(number, many)):
            if span:
                on_step(await trainer.train(span, on_step=on_step))
            await rounds.average(self.training.weight(number, many, index))
        return {}

    async def _train_beside(
        self, trainer: RankTrainer, rounds: Rounds, number: int, many: int, on_step: Callable[[StepReport], None]
    ) -> Mapping[int, int]:
        """Train all steps, with rounds beside them, and one more at the end; returns `OverlappedRounds.added`."""
        training, steps = self.training, self.training.steps_of(number, many)
        every, last = training.every * training.microbatches, len(training.spans_of(number, many)) - 1
        order = self.order.added if self.order else {}
        beside = OverlappedRounds(rounds, trainer.context.actor, every, last, order)
        if steps:
            on_step(await trainer.train(steps, on_step=on_step, after_update=beside.after_update))
        await beside.finish(len(steps) * training.microbatches)
        await rounds.average(training.weight(number, many, last))
        return beside.added


@asynccontextmanager
async def _opened(worlds: OpensWorlds, name: str, addresses: list[str]) -> AsyncIterator[Transport]:
    """A world that is closed after the block, or aborted where the block fails, so that no other rank waits."""
    world = await worlds.open(name, addresses)
    try:
        yield world
    except BaseException as error:
        await world.abort(str(error) or type(error).__name__)
        raise
    await world.close()
