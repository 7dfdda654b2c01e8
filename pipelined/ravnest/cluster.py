"""One node's part in its cluster: a stage of a pipeline without a flush, as a rank of a world between endpoints.

The worker, its weight versions and the agreement on each step are those of any pipeline. The clusters are averaged
after each span of steps, or beside them. Imports torch.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Protocol

import torch

from pipelined.actors.actor import Actor
from pipelined.actors.executor import Executor
from pipelined.aio.nursery import Nursery
from pipelined.errors import UsageError
from pipelined.ravnest.cluster_run import ClusterRun
from pipelined.ravnest.orders import KeptOrder, NodeOrder, OrderDirectory
from pipelined.ravnest.records import Clusters
from pipelined.ravnest.rounds import RoundLog, Rounds, state_by_layer
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
        training = replace(self.training, begin=clusters.begun.step)
        async with AsyncExitStack() as stack:
            world = await stack.enter_async_context(_opened(self.worlds, f"{name}, {number}", addresses[number]))
            everyone = world
            if many > 1:  # before the stage is built, which keeps the event loop from replying to the others
                everyone = await stack.enter_async_context(_opened(self.worlds, name, list(chain(*addresses))))
            actor = await stack.enter_async_context(Actor(world))
            kept = KeptOrder(self.orders, clusters, place, training.microbatches)
            trainer = build_rank(
                actor,
                training.job(clusters, number),
                executor=self.executor,
                tracer=kept.tracer if self.orders else self.tracer,
                orders=self.order.of_stage(stage) if self.order else None,
            )
            layers, local = state_by_layer(training.model, training.numerics.dtype), trainer.local.tensors
            held = {name: local[name] for layer in layers for name in layer if name in local}
            async with Nursery() as writes:
                saver = self._saver(writes, training, trainer, kept, held)
                if clusters.begun.step:
                    await _required(saver).restore(clusters.begun)
                run = ClusterRun(training, number, many, trainer, held, on_step)
                if many == 1:
                    await run.alone(saver)
                else:
                    executor = self.executor
                    rounds = Rounds(everyone, clusters, layers, tensors=held, executor=executor, log=log, saver=saver)
                    if training.overlapped:
                        await run.beside(rounds, self.order.added if self.order else {}, kept.added)
                    else:
                        await run.between(rounds)
            digest = await model_digest(world, trainer.local)
        await kept.write()
        return digest

    def _saver(
        self,
        writes: Nursery,
        training: ClusterTraining,
        trainer: RankTrainer,
        kept: KeptOrder,
        held: Mapping[str, torch.Tensor],
    ) -> StageSaver | None:
        """Saves this node's stage, or only restores it; None: this node keeps nothing."""
        clusters, (number, stage), saving = kept.clusters, kept.place, self.saving
        if saving is None:
            return None
        at = SavedStage(0, stage, len(clusters.rows[number]), f"{saving.run}-{clusters.number}")
        return StageSaver(
            writes,
            saving,
            at,
            steps=training.steps_by_round(len(clusters.rows)),
            tensors=held,
            optimizer=trainer.rank_optimizer.state,
            executor=self.executor,
            writes=number == 0,
            on_begin=kept.write,
        )


def _required(saver: StageSaver | None) -> StageSaver:
    """Raises UsageError: clusters that begin with a save have a node that cannot read it."""
    if saver is None:
        raise UsageError("the clusters begin with what was saved; start this node with --checkpoint")
    return saver


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
