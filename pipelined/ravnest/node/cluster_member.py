"""One node's part in its cluster: a stage of a pipeline without a flush, as a rank of a world between endpoints.

The worker, its weight versions and the agreement on each step are those of any pipeline. The clusters are averaged
after each span of steps, or beside them. Where the generation ends for another to follow, the node stops with its
cluster, and begins in the next one with the state that it has. Imports torch.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from collectives.objects import gather_objects
from pipelined.actors.actor import Actor
from pipelined.actors.device.executor import Executor
from pipelined.ravnest.averaging.round_decisions import RoundDecisions
from pipelined.ravnest.averaging.rounds import RoundOutputs, Rounds, state_by_layer
from pipelined.ravnest.averaging.state_transfer import MomentsTransfer
from pipelined.ravnest.cluster_place import ClusterPlace
from pipelined.ravnest.node.backup import PlaceReplica, fixed_order, fixed_turns
from pipelined.ravnest.node.cluster_run import ClusterRank, ClusterRun
from pipelined.ravnest.node.generation_worlds import GenerationWorlds, OpeningWorld, WorldOpener
from pipelined.ravnest.node.ravnest_training import RavnestTraining
from pipelined.ravnest.records.generation import Generation
from pipelined.ravnest.records.progress import ClusterStop
from pipelined.ravnest.stage.held_stage import HeldStage
from pipelined.ravnest.stage.orders import NodeOrder, OrderDirectory, OrderRecorder
from pipelined.ravnest.stage.saving import SaveReader, SaveSettings, StageSaver
from pipelined.state.stages.versions import SavedStage
from pipelined.traces.tracer import NullTracer, Tracer
from pipelined.training.assemble import build_rank
from pipelined.training.digests import model_digest
from pipelined.training.segments.step_report import StepReport
from transports import Nursery
from transports.rpc.world import RankHolder, RpcTransport


@dataclass(frozen=True)
class StageStart:
    """What a node begins a generation with, and where a replay stops it.

    Args:
        previous_stage: the state of its stage in the generation before; None: the node was not in it.
        saves: reads what the generation may begin with; None: those where this node saves.
        limit: steps of the cluster, by its own count, that a replay is to do again; None: all.
    """

    previous_stage: HeldStage | None = None
    saves: SaveReader | None = None
    limit: int | None = None


@dataclass(frozen=True)
class ClusterOutcome:
    """What a node has when a generation ends, or has trained its last step.

    Args:
        state: of its stage; None: it is in a late cluster, and has received no committed round.
        stop: what its cluster had done.
        digest: of all parameters, on the first node of a cluster after the last round; else "".
    """

    state: HeldStage | None
    stop: ClusterStop
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
    worlds: WorldOpener
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
        closing_tasks: Nursery | None = None,
    ) -> ClusterOutcome:
        """Train the steps of this node's cluster with rounds between or beside them, until this generation ends.

        Args:
            place: of this node.
            on_step: called with each step that the cluster completed, in order.
            closing_tasks: see `GenerationWorlds`.
        Raises:
            TransportError: another node of the cluster left, or failed.
            AgreedError: loss or norm of a step is not finite.
            NoLongerValid: this cluster goes on, and no node has the state of this stage any more.
        """
        gc.collect()  # a lost cluster's stage is in cycles of its tasks and their errors
        cluster, _ = place
        worlds = GenerationWorlds(self.worlds, generation, decisions, closing_tasks)
        async with worlds.opened(cluster) as (world, world_of_all), Actor(world) as actor:
            rank = self._build_stage(generation, place, actor, world_of_all, fresh=start.previous_stage is None)
            training, trainer = rank.training, rank.trainer
            run = ClusterRun(rank, on_step, decisions, start.limit)
            async with Nursery() as tasks:
                saver = self._saver(tasks, rank)
                await rank.load_state(start.previous_stage, start.saves or self.saving)
                steps_done, completed = await self._run(run, saver)
            digest = await model_digest(rank.world, trainer.local) if completed else ""
            await rank.recorder.write()
            rounds = training.rounds_of(generation) if completed else await decisions.wait_for_end()
            await gather_objects(rank.world, "stopped", True)  # each has written its order
            rank.held_stage.free_gradients()
            rank.held_stage.prepared = {rank.nodes: trainer.prepared}
        state = rank.held_stage if rounds or not generation.is_late(cluster) else None  # a late one's is from a round
        return ClusterOutcome(state, training.cluster_stop(generation, cluster, steps_done, rounds), digest)

    def _build_stage(
        self,
        generation: Generation,
        place: ClusterPlace,
        actor: Actor,
        world_of_all: OpeningWorld | None,
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
        is_backup = isinstance(world, RpcTransport) and RankHolder(world).is_backup
        recorder = OrderRecorder(
            self.order_directory, generation, place, training.microbatches, is_backup, tracer=self.tracer
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
        held_stage = HeldStage(tensors, trainer.rank_optimizer.state, self.executor)
        return ClusterRank(
            training=training,
            world=world,
            world_of_all=world_of_all,
            trainer=trainer,
            layers=layers,
            held_stage=held_stage,
            recorder=recorder,
            order=order,
            replica=replica,
        )

    async def _run(self, run: ClusterRun, saver: StageSaver | None) -> tuple[int, bool]:
        """See `ClusterRun.train_overlapped`."""
        rank, generation = run.rank, run.generation
        layers, held_stage, world_of_all = rank.layers, rank.held_stage, rank.world_of_all
        if world_of_all is None:
            return await run.train_alone(saver)
        rank_of_all = sum(map(len, generation.clusters[: run.cluster])) + rank.place.stage
        has_late_clusters = generation.continuation.late_clusters > 0
        moments = MomentsTransfer(rank_of_all, generation, layers, held_stage) if has_late_clusters else None
        rounds = Rounds(
            rank_of_all,
            world_of_all,
            generation,
            layers,
            tensors=held_stage.tensors,
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
        alive = generation.stage_place(place).alive
        return PlaceReplica(world, actor, order, microbatches=microbatches, alive=alive, room=backup.room)

    def _saver(self, tasks: Nursery, rank: ClusterRank) -> StageSaver | None:
        """Saves this node's stage; None: this node keeps nothing."""
        generation, (cluster, stage), saving = rank.generation, rank.place, self.saving
        if saving is None:
            return None
        saved_stage = SavedStage(0, stage, len(generation.clusters[cluster]), f"{saving.run}-{generation.number}")
        steps = rank.training.steps_by_round(generation)
        return StageSaver(tasks, saving, saved_stage, steps=steps, stage=rank.held_stage, is_writer=rank.is_writer)
