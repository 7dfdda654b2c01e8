"""One node's part in its cluster: a stage of a pipeline without a flush, as a rank of a world between endpoints.

The worker, its weight versions and the agreement on each step are those of any pipeline. The clusters are averaged
after each span of steps, or beside them. Where the generation ends for another to follow, the node stops with its
cluster, and begins in the next one with the state that it has. Imports torch.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from collectives.objects import gather_objects
from pipelined.actors.actor import Actor
from pipelined.actors.device.executor import Executor
from pipelined.ravnest.averaging.round_decisions import RoundDecisions
from pipelined.ravnest.averaging.rounds import RoundOutputs, Rounds, state_by_layer
from pipelined.ravnest.averaging.state_transfer import MomentsTransfer
from pipelined.ravnest.cluster_place import ClusterPlace
from pipelined.ravnest.node.backup import PlaceReplica, fixed_order, fixed_turns
from pipelined.ravnest.node.cluster_run import ClusterRank, ClusterRun
from pipelined.ravnest.node.ravnest_training import RavnestTraining
from pipelined.ravnest.records.generation import Generation
from pipelined.ravnest.records.progress import ClusterStop
from pipelined.ravnest.stage.held_stage import HeldStage
from pipelined.ravnest.stage.orders import NodeOrder, OrderDirectory, OrderRecorder
from pipelined.ravnest.stage.saving import ReadsSaved, SaveSettings, StageSaver
from pipelined.state.stages.versions import SavedStage
from pipelined.traces.tracer import NullTracer, Tracer
from pipelined.training.assemble import build_rank
from pipelined.training.digests import model_digest
from pipelined.training.segments.step_report import StepReport
from transports import Nursery, Transport
from transports.rpc.world import RankHolder, RpcTransport, abort_reason

T = TypeVar("T", bound=Transport | None)


class OpensWorlds(Protocol):
    """Opens the worlds of one node: over its endpoint (`transports.rpc.world.Worlds`), or in this process."""

    async def open(self, name: str, addresses: Sequence[str], backups: Sequence[str] = ()) -> Transport:
        """A rank of a world; see `Worlds.open`."""

    def lose(self, addresses: Iterable[str]) -> None:
        """See `Worlds.lose`."""


@dataclass(frozen=True)
class StageStart:
    """What a node begins a generation with, and where a replay stops it.

    Args:
        before: the state of its stage in the generation before; None: the node was not in it.
        saved: what the generation may begin with; None: what is saved where this node saves.
        limit: steps of the cluster, by its own count, that a replay is to do again; None: all.
    """

    before: HeldStage | None = None
    saved: ReadsSaved | None = None
    limit: int | None = None


@dataclass(frozen=True)
class ClusterOutcome:
    """What a node has when a generation ends, or has trained its last step.

    Args:
        state: of its stage; None: it is in a late cluster, and has received no committed round.
        stopped: what its cluster had done.
        digest: of all parameters, on the first node of a cluster after the last round; else "".
    """

    state: HeldStage | None
    stopped: ClusterStop
    digest: str = ""


@dataclass(frozen=True)
class ClusterMember:
    """A node in one cluster of each generation that it is in.

    Args:
        worlds: of this node.
        tracer: records what the node does, in order.
        order_directory: where this node records its order; None: nowhere.
        recorded_order: what to do, in a replay; None: what the schedule says.
        saving: where to save; None: nothing is saved.
    """

    training: RavnestTraining
    worlds: OpensWorlds
    executor: Executor
    tracer: Tracer = field(default_factory=NullTracer)
    order_directory: OrderDirectory | None = None
    recorded_order: NodeOrder | None = None
    saving: SaveSettings | None = None

    async def train(
        self,
        generation: Generation,
        place: ClusterPlace,
        *,
        on_step: Callable[[StepReport], None],
        decisions: RoundDecisions,
        start: StageStart = StageStart(),
        leaving: Nursery | None = None,
    ) -> ClusterOutcome:
        """Train the steps of this node's cluster with rounds between or beside them, until this generation ends.

        Args:
            place: of this node.
            on_step: called with each step that the cluster completed, in order.
            leaving: the parent of the tasks that close the worlds while the node goes on; None: they are closed before
                it returns. Closing may take long: its messages wait behind the bytes of a round that failed.
        Raises:
            TransportError: another node of the cluster left, or failed.
            AgreedError: loss or norm of a step is not finite.
            NoLongerValid: this cluster goes on, and no node has the state of this stage any more.
        """
        gc.collect()  # a lost cluster's stage is in cycles of its tasks and their errors
        cluster, _ = place
        async with AsyncExitStack() as stack:
            actor, world_of_all = await self._open_worlds(stack, generation, cluster, decisions, leaving)
            rank = self._build_stage(generation, place, actor, world_of_all, fresh=start.before is None)
            training, trainer = rank.training, rank.trainer
            run = ClusterRun(rank, on_step, decisions, start.limit)
            async with Nursery() as tasks:
                saver = self._saver(tasks, rank)
                await rank.load_state(start.before, start.saved or self.saving)
                done, completed = await self._run(run, saver)
            digest = await model_digest(rank.world, trainer.local) if completed else ""
            await rank.recorder.write()
            rounds = training.rounds_of(generation) if completed else await decisions.wait_for_end()
            await gather_objects(rank.world, "stopped", True)  # each has written its order
            rank.held.free_gradients()
            rank.held.prepared = {rank.nodes: trainer.prepared}
        state = rank.held if rounds or not generation.is_late(cluster) else None  # a late one's is from a round
        return ClusterOutcome(state, training.stopped(generation, cluster, done, rounds), digest)

    async def _open_worlds(
        self,
        stack: AsyncExitStack,
        generation: Generation,
        cluster: int,
        decisions: RoundDecisions,
        leaving: Nursery | None,
    ) -> tuple[Actor, "asyncio.Task[Transport | None] | None"]:
        """The actor of this node in the world of its cluster, and the world of all clusters; see `_open_world_of_all`.

        Args:
            stack: closes the worlds.
            leaving: see `train`.
        """
        world = await stack.enter_async_context(_keep_open(self._open(generation, cluster), leaving))
        world_of_all = await stack.enter_async_context(self._open_world_of_all(generation, decisions, leaving))
        return await stack.enter_async_context(Actor(world)), world_of_all

    def _build_stage(
        self,
        generation: Generation,
        place: ClusterPlace,
        actor: Actor,
        world_of_all: "asyncio.Task[Transport | None] | None",
        *,
        fresh: bool,
    ) -> ClusterRank:
        """Build the stage of this node.

        Args:
            fresh: whether this node was not in the generation before.
        """
        world = actor.transport
        training = replace(self.training, start=generation.start.step)
        replica = self._replica(training, generation, place, actor)
        order = replica.order if replica else self.recorded_order
        second = isinstance(world, RpcTransport) and RankHolder(world).is_backup
        recorder = OrderRecorder(
            self.order_directory, generation, place, training.microbatches, second, beside=self.tracer
        )
        trainer = build_rank(
            actor,
            replace(training.job(generation, place.cluster), fresh=fresh),
            executor=self.executor,
            tracer=recorder.tracer if self.order_directory else self.tracer,
            orders=order.of_stage(place.stage) if order else None,
        )
        layers = state_by_layer(training.model, training.numerics.dtype)
        local = trainer.local.tensors
        tensors = {name: local[name] for layer in layers for name in layer if name in local}
        held = HeldStage(tensors, trainer.rank_optimizer.state, self.executor)
        return ClusterRank(
            training=training,
            world=world,
            world_of_all=world_of_all,
            trainer=trainer,
            layers=layers,
            held=held,
            recorder=recorder,
            order=order,
            replica=replica,
        )

    @asynccontextmanager
    async def _open_world_of_all(
        self, generation: Generation, decisions: RoundDecisions, leaving: Nursery | None
    ) -> AsyncIterator["asyncio.Task[Transport | None] | None"]:
        """Opens the world of all clusters while this one trains: to None where they end first; None: there is one."""
        if len(generation.clusters) == 1:
            yield None
            return
        async with Nursery() as tasks:
            opening = tasks.create_task(decisions.attempt(self._open(generation)))
            await asyncio.sleep(0)  # others get its request before the stage is built, which occupies the loop
            try:
                yield opening
            except BaseException as error:
                opening.cancel()
                if opening.done() and not opening.cancelled() and not opening.exception():
                    await _abort(opening.result(), error)
                raise
            await _close(await opening, leaving)

    async def _open(self, generation: Generation, cluster: int | None = None) -> Transport:
        """A rank of the world of one cluster; None: of the world of the whole generation."""
        name = f"clusters {generation.number}"
        numbers = range(len(generation.clusters))
        if cluster is not None:
            name, numbers = f"{name}, {cluster}", range(cluster, cluster + 1)
        addresses = [place.holder.address for number in numbers for place in generation.clusters[number]]
        backups = [address for number in numbers for address in generation.backup_addresses(number)]
        return await self.worlds.open(name, addresses, backups)

    async def _run(self, run: ClusterRun, saver: StageSaver | None) -> tuple[int, bool]:
        """See `ClusterRun.train_overlapped`."""
        rank, generation = run.rank, run.generation
        layers, held, world_of_all = rank.layers, rank.held, rank.world_of_all
        if world_of_all is None:
            return await run.train_alone(saver)
        rank_of_all = sum(map(len, generation.clusters[: run.cluster])) + rank.place.stage
        late = generation.continuation.late_clusters > 0
        moments = MomentsTransfer(rank_of_all, generation, layers, held) if late else None
        rounds = Rounds(
            rank_of_all,
            world_of_all,
            generation,
            layers,
            tensors=held.tensors,
            executor=self.executor,
            decisions=run.decisions,
            outputs=RoundOutputs(saver=saver, moments=moments, recorder=rank.recorder),
        )
        if run.training.overlapped:
            return await run.train_overlapped(rounds)
        return await run.train_blocking(rounds)

    def _replica(
        self, training: RavnestTraining, generation: Generation, place: ClusterPlace, actor: Actor
    ) -> PlaceReplica | None:
        """What both nodes of this place do; None: it has one node, or a recorded order."""
        backup = generation.backup_at(place)
        if self.recorded_order is not None or backup is None:
            return None
        world = actor.transport
        assert isinstance(world, RpcTransport)  # worlds in one process are those of a recorded order
        microbatches = training.microbatches
        steps = training.own_steps(place.cluster, len(generation.clusters))
        instructions = fixed_order(generation, place, len(steps) * microbatches)
        order = NodeOrder(instructions, fixed_turns(training.snapshots(generation), training.every * microbatches))
        alive = generation.at(place).alive
        return PlaceReplica(world, actor, order, microbatches=microbatches, alive=alive, room=backup.room)

    def _saver(self, tasks: Nursery, rank: ClusterRank) -> StageSaver | None:
        """Saves this node's stage; None: this node keeps nothing."""
        generation, (cluster, stage), saving = rank.generation, rank.place, self.saving
        if saving is None:
            return None
        saved = SavedStage(0, stage, len(generation.clusters[cluster]), f"{saving.run}-{generation.number}")
        steps = rank.training.steps_by_round(generation)
        return StageSaver(tasks, saving, saved, steps=steps, stage=rank.held, is_writer=rank.is_writer)


@asynccontextmanager
async def _keep_open(opening: Awaitable[T], leaving: Nursery | None) -> AsyncIterator[T]:
    """A world, if it opens; it is closed after the block, or aborted where that fails, so that no other rank waits.

    Args:
        leaving: see `ClusterMember.train`.
    """
    world = await opening
    try:
        yield world
    except BaseException as error:
        await _abort(world, error)
        raise
    await _close(world, leaving)


async def _abort(world: Transport | None, error: BaseException) -> None:
    if world is not None:
        await world.abort(abort_reason(error))


async def _close(world: Transport | None, leaving: Nursery | None) -> None:
    if world is not None and leaving is not None:
        leaving.create_task(world.close())
    elif world is not None:
        await world.close()
