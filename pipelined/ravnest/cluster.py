"""One node's part in its cluster: a stage of a pipeline without a flush, as a rank of a world between endpoints.

The worker, its weight versions and the agreement on each step are those of any pipeline. The clusters are averaged
after each span of steps, or beside them. Imports torch.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from pipelined.actors.actor import Actor
from pipelined.actors.executor import Executor
from pipelined.aio.nursery import Nursery
from pipelined.ravnest.orders import NodeOrder, OrderDirectory, OrderTracer
from pipelined.ravnest.overlapped import OverlappedRounds
from pipelined.ravnest.records import Clusters
from pipelined.ravnest.rounds import RoundLog, Rounds, flat_copy
from pipelined.ravnest.saving import Saving, StageSaver
from pipelined.ravnest.training import ClusterTraining
from pipelined.state.versions import SavedStage
from pipelined.traces.file import NullTracer, Tracer
from pipelined.training.assemble import build_rank
from pipelined.training.digests import model_digest
from pipelined.training.step_report import StepReport
from pipelined.training.trainer import RankTrainer
from transports import Transport


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
            everyone = world
            if many > 1:  # before the stage is built, which keeps the event loop from replying to the others
                everyone = await stack.enter_async_context(_opened(self.worlds, name, list(chain(*addresses))))
            actor = await stack.enter_async_context(Actor(world))
            job = self.training.job(clusters, number)
            orders = self.order.of_stage(stage) if self.order else None
            trainer = build_rank(actor, job, executor=self.executor, tracer=tracer, orders=orders)
            async with Nursery() as writes:
                saver, held = self._saver(writes, clusters, place, trainer), trainer.local.parameters
                if many == 1:
                    added = await self._train_alone(trainer, saver, on_step)
                else:
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
