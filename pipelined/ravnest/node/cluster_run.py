"""A node's rank in a cluster, and the steps that it trains there, with rounds between spans of steps or beside them.

Imports torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from pipelined.membership.view import NoLongerValid
from pipelined.ravnest.averaging.overlapped import EmptyRounds, OverlappedRounds, RoundListener
from pipelined.ravnest.averaging.round_decisions import RoundDecisions
from pipelined.ravnest.averaging.rounds import Rounds
from pipelined.ravnest.averaging.state_transfer import share_state
from pipelined.ravnest.cluster_place import ClusterPlace
from pipelined.ravnest.node.backup import PlaceReplica
from pipelined.ravnest.node.generation_worlds import OpeningWorld
from pipelined.ravnest.node.ravnest_training import RavnestTraining
from pipelined.ravnest.records.generation import Generation
from pipelined.ravnest.records.progress import RoundEnd
from pipelined.ravnest.stage.held_stage import HeldStage
from pipelined.ravnest.stage.orders import NodeOrder, OrderRecorder
from pipelined.ravnest.stage.saving import SaveReader, StageSaver
from pipelined.training.rank_trainer import RankTrainer
from pipelined.training.segments.stage_updates import UpdateListener
from pipelined.training.segments.step_report import StepReport
from transports import Transport


@dataclass(frozen=True, kw_only=True)
class ClusterRank:
    """A node's rank in one cluster of a generation, from the opened worlds to the stage that it trains.

    Args:
        training: begins where this generation begins.
        world: of the cluster.
        world_of_all: None: there is one cluster.
        layers: of the whole model, the state of each by name.
        held_stage: the state of this stage.
        recorder: of what this node does, in order.
        order: what to do, in order; None: what the schedule says.
        replica: this node's part of a place that has a backup; None: it has none.
    """

    training: RavnestTraining
    world: Transport
    world_of_all: OpeningWorld | None
    trainer: RankTrainer
    layers: Sequence[Mapping[str, torch.Tensor]]
    held_stage: HeldStage
    recorder: OrderRecorder
    order: NodeOrder | None
    replica: PlaceReplica | None

    @property
    def generation(self) -> Generation:
        return self.recorder.generation

    @property
    def place(self) -> ClusterPlace:
        return self.recorder.place

    @property
    def nodes(self) -> str:
        """The nodes of this cluster, and their places in it."""
        cluster = self.place.cluster
        backups = [(backup.stage, backup.holder) for backup in self.generation.backups if backup.cluster == cluster]
        return f"{self.generation.clusters[cluster]} {backups}"

    def is_writer(self) -> bool:
        """Whether this node saves the stage for all clusters: in the first one, and not as the second of two nodes."""
        return self.place.cluster == 0 and not (self.replica and self.replica.is_second)

    async def load_state(self, previous_stage: HeldStage | None, saves: SaveReader | None) -> None:
        """Load the state of the previous stage, or a save; where clusters go on, nodes share the state that is missing.

        Raises:
            NoLongerValid: see `share_state`.
        """
        if previous_stage is not None:
            await self.held_stage.take_over(previous_stage)
            self.trainer.prepared = previous_stage.prepared.get(self.nodes)  # each of these nodes decides the same
        elif self.generation.start.lineage:
            await self._load(saves)
        if self.generation.continuation.previous > 0 and not self.generation.is_late(self.place.cluster):
            await self._share(previous_stage is not None)

    async def _load(self, saves: SaveReader | None) -> None:
        assert saves is not None, "a generation that begins with a save needs to know where to read it"
        async for state in saves.load(self.generation.start, self.held_stage.specs):
            await self.held_stage.restore({key: block.torch() for key, block in state.items()})

    async def _share(self, has_state: bool) -> None:
        """Give a new backup of this place the state, or get it as the new backup; see `share_state`."""
        actor = self.trainer.context.actor
        sender = self.generation.holders(self.place)[0].name
        if self.replica is None:
            await share_state(None, actor, self.held_stage, has_state, sender)
        else:
            self.replica.copying = await share_state(self.replica.holder, actor, self.held_stage, has_state, sender)


class SpanSaves(RoundListener):
    """The saves of a cluster alone, one after each span of steps.

    Args:
        saver: None: nothing is saved.
        rounds: beside them; see `EmptyRounds`.
        span_updates: of a span.
        spans: how many; the last one is saved after training.
    """

    def __init__(
        self, saver: StageSaver | None, recorder: OrderRecorder, rounds: EmptyRounds, span_updates: int, spans: int
    ):
        self._saver = saver
        self._recorder = recorder
        self._rounds = rounds
        self._span_updates = span_updates
        self._spans = spans

    async def after_update(self, updates: int) -> None:
        """Save after a span; see `EmptyRounds.after_update`, too."""
        if updates % self._span_updates == 0 and updates // self._span_updates < self._spans:
            await self.save(updates // self._span_updates)
        await self._rounds.after_update(updates)
        self.generation_ended = self._rounds.generation_ended

    async def save(self, round_: int) -> None:
        """Save after this span, from 1."""
        if self._saver is not None:
            await self._recorder.write()
            await self._saver.save_own(round_)


class ClusterRun:
    """The training of one cluster.

    Args:
        rank: if its place has a backup, rounds alone decide where the node stops.
        on_step: called with each step that the cluster completed, in order.
        decisions: on rounds, and on the end of this generation.
        limit: see `StageStart`.
    """

    def __init__(
        self, rank: ClusterRank, on_step: Callable[[StepReport], None], decisions: RoundDecisions, limit: int | None
    ):
        self.rank = rank
        self.on_step = on_step
        self.decisions = decisions
        self.limit = limit
        self.training = rank.training
        self.generation = rank.generation
        self.cluster = rank.place.cluster
        self.trainer, self.replica = rank.trainer, rank.replica

    async def train_alone(self, saver: StageSaver | None) -> tuple[int, bool]:
        """Train all steps in the only cluster, which saves its own values where several would be averaged.

        Returns: as `train_overlapped`.
        """
        training = self.training
        spans = len(self.training.spans_of(self.generation, 0))
        rounds = self._empty_rounds
        saves = SpanSaves(saver, self.rank.recorder, rounds, training.every * training.microbatches, spans)
        steps_done, has_stopped = await self._train_all(saves)
        await rounds.finish()
        completed = not has_stopped and self.limit is None
        if completed:
            await saves.save(spans)
        return steps_done, completed

    async def train_blocking(self, rounds: Rounds) -> tuple[int, bool]:
        """Train span by span, and drain for the round after each. Returns: as `train_overlapped`."""
        generation = self.generation
        cluster = self.cluster
        steps_done = 0
        spans = self.training.spans_of(generation, cluster)
        for span in [*generation.opening_rounds * [range(0)], *spans]:
            if span := span[: len(self._steps[span.start :])]:
                report = await self._train(span)
                steps_done = report.step + 1
                if report.stop:
                    return steps_done, False
            if not await self._average(rounds):
                return steps_done, False
        return steps_done, True

    async def train_overlapped(self, rounds: Rounds) -> tuple[int, bool]:
        """Train all steps, with rounds beside them, and one more at the end.

        Returns: its own count of steps trained, and whether the last round is committed; else the generation ends.
        """
        generation, actor = self.generation, self.trainer.context.actor
        snapshots = self.training.snapshots(generation)[generation.opening_rounds :]
        added = self.rank.recorder.added
        add_after = self.rank.order.added if self.rank.order else {}
        overlapped = OverlappedRounds(
            rounds, actor, snapshots=snapshots, add_after=add_after, added=added, weigh=partial(self._weight, rounds)
        )
        if generation.opening_rounds and not generation.is_late(self.cluster):
            await self.trainer.prepare()  # its small messages would wait behind the round's
            await overlapped.start_round()
        elif generation.opening_rounds:
            if not await self._average(rounds):
                return 0, False
            added[1] = 0
        steps_done, has_stopped = await self._train_all(overlapped)
        await overlapped.finish(steps_done * self.training.microbatches)
        if has_stopped or overlapped.generation_ended:
            return steps_done, False
        return steps_done, await self._average(rounds)

    def _weight(self, rounds: Rounds) -> float | None:
        return self.training.weight(self.generation, self.cluster, rounds.ended_round + 1, rounds.committed_round)

    async def _average(self, rounds: Rounds) -> bool:
        """Take part in the next round.

        Returns: True: training goes on, or is complete. False: this generation ends, as after a refused last round.
        Raises:
            NoLongerValid: the round is refused, and this cluster cannot go on: it is late and has no average, or it is
                the last round, and this cluster sent what was refused.
        """
        end = await rounds.average(self._weight(rounds))
        round_ = rounds.ended_round
        if end is not RoundEnd.REFUSED:
            return end is RoundEnd.COMMITTED
        is_last = round_ == self.training.rounds_of(self.generation)
        sent_it = is_last and self.decisions.sender_of(round_) == self.cluster  # other clusters train its steps
        has_no_average = not is_last and self.generation.is_late(self.cluster) and not rounds.committed_round
        if sent_it or has_no_average:
            raise NoLongerValid(f"round {round_} was refused")
        return not is_last

    @property
    def _empty_rounds(self) -> EmptyRounds:
        """The rounds of a lone cluster, where each place has a backup; else none: another place decides on its end."""
        snapshots = list[int]()
        add_after = dict[int, int]()
        actor = self.trainer.context.actor
        if self.replica and len(self.generation.backups) >= len(self.generation.clusters[0]):
            snapshots = self.training.snapshots(self.generation)
            add_after = {**self.replica.order.added}
        return EmptyRounds(self.decisions, actor, commits=actor.rank == 0, snapshots=snapshots, add_after=add_after)

    async def _train_all(self, listener: RoundListener) -> tuple[int, bool]:
        """Train all steps in one segment; returns how many were trained, and whether the cluster stopped before."""
        if not self._steps:
            return 0, False
        report = await self._train(self._steps, listener)
        return report.step + 1, report.stop

    async def _train(self, steps: range, listener: RoundListener | None = None) -> StepReport:
        """Train these steps, or fewer if this generation ends; returns the report of the last one."""
        stops = self.replica.stops if self.replica else self.decisions.ends
        report = await self.trainer.train(steps, stops, self.on_step, RunUpdates(self, steps.start, listener))
        self.on_step(report)
        return report

    @property
    def _steps(self) -> range:
        return self.training.own_steps(self.cluster, len(self.generation.clusters))[: self.limit]


@dataclass(frozen=True)
class RunUpdates(UpdateListener):
    """What a node does after each update: running statistics, then its rounds or saves, then the pace of its place.

    Args:
        first_step: the step with which the segment begins.
        listener: rounds or saves beside training; None: there are none.
    """

    run: ClusterRun
    first_step: int
    listener: RoundListener | None

    async def after_update(self, updates: int) -> None:
        """See `UpdateListener`."""
        run, microbatches = self.run, self.run.training.microbatches
        await run.trainer.merge_statistics(self.first_step + updates // microbatches)
        if self.listener:
            await self.listener.after_update(updates)
        if run.replica:
            if self.listener and self.listener.generation_ended:
                run.replica.end_after(updates)
            await run.replica.keep_pace(self.first_step * microbatches + updates)
