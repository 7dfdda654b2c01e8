"""The replay of a run in one process: every node does again what its order says, over transports of this process.

The orders of each cluster are proved before they are followed, like any schedule. Imports torch.
"""

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from pipelined.actors.device.executor import Executor
from pipelined.aio.tasks import Notifier
from pipelined.errors import UsageError
from pipelined.programs.instructions import Program
from pipelined.programs.proof.check import check
from pipelined.ravnest.averaging.round_decisions import RoundDecisions
from pipelined.ravnest.cluster_place import ClusterPlace
from pipelined.ravnest.node.cluster_member import ClusterMember, StageStart
from pipelined.ravnest.node.generation_worlds import WorldOpener
from pipelined.ravnest.node.ravnest_training import RavnestTraining
from pipelined.ravnest.records.generation import Generation
from pipelined.ravnest.records.places import Holder
from pipelined.ravnest.records.progress import RoundEnd, common_digest
from pipelined.ravnest.stage.held_stage import HeldStage
from pipelined.ravnest.stage.orders import RunOrders
from pipelined.ravnest.stage.saving import SaveSettings
from pipelined.schedules import ScheduleError, find
from pipelined.state.stages.store import DiskStore
from pipelined.training.segments.step_report import StepReport
from transports import Nursery, Transport
from transports.local import world

T = TypeVar("T")
ONLY_LAST_ROUND = 1 << 62
"""Rounds from one save to the next where only the last round is saved."""


async def replay(
    runs: Sequence[tuple[RavnestTraining, RunOrders]],
    executor: Executor,
    on_step: Callable[[int, StepReport], None] = lambda cluster, report: None,
) -> str:
    """Train again in the recorded order; returns the digest of the average.

    Args:
        runs: what the generations trained that followed one another, and their orders; each begins with what those
            before it saved.
        executor: computes for all nodes.
        on_step: called with a cluster's number and each step of the training that it completed.
    Raises:
        UsageError: the orders do not train this. UnequalClusters.
    Cost: the computing of all nodes, and their memory.
    """
    parts = [(_training_part(training, orders), orders) for training, orders in runs]
    for training, orders in parts:
        _prove(training, orders)
    with TemporaryDirectory() as directory:
        run = next((orders.generation.start.run for _, orders in parts if orders.generation.start.lineage), "")
        saving = SaveSettings(DiskStore(Path(directory), parts[0][0].model.identity()), ONLY_LAST_ROUND, run)
        stages = dict[Holder, HeldStage]()
        for training, orders in parts:
            stages, digests = await _replay(training, orders, executor, on_step, saving=saving, stages_before=stages)
    return common_digest(digests)


async def _replay(
    training: RavnestTraining,
    orders: RunOrders,
    executor: Executor,
    on_step: Callable[[int, StepReport], None],
    *,
    saving: SaveSettings,
    stages_before: Mapping[Holder, HeldStage],
) -> tuple[dict[Holder, HeldStage], list[str]]:
    """Repeat one generation, up to the state from which the next began, or to its last step.

    Args:
        saving: of their last round.
        stages_before: the stages that nodes of the generation before have.
    Returns: what the nodes of this generation have, and the digest of each cluster that trained its last step.
    """
    ranks = dict[str, list[Transport]]()
    generation = orders.generation
    decisions = LocalDecisions(orders.successor.continuation.rounds if orders.successor else None, orders.refused)
    async with Nursery() as tasks:
        training_tasks = {}
        for place, order in orders.orders.items():
            if place.cluster not in orders.needed:
                continue
            stage_place = generation.stage_place(place)
            worlds = LocalWorlds(ranks, stage_place.holder.address)
            member = ClusterMember(training, worlds, executor, recorded_order=order, saving=saving)

            report = partial(_report_first_stage, generation, place, on_step)
            limit = _limit(training, orders, place.cluster)
            start = StageStart(stages_before.get(stage_place.holder), limit=limit)
            work = member.train(generation, place, on_step=report, decisions=decisions, start=start)
            training_tasks[place] = tasks.create_task(work)
    outcomes = {place: task.result() for place, task in training_tasks.items()}
    states = {
        holder: outcome.state
        for place, outcome in outcomes.items()
        for holder in generation.holders(place)
        if outcome.state is not None
    }
    return states, [outcome.digest for outcome in outcomes.values() if outcome.digest]


def _report_first_stage(
    generation: Generation, place: ClusterPlace, on_step: Callable[[int, StepReport], None], report: StepReport
) -> None:
    """Report a step of a cluster by its number in the training, once for all its stages."""
    if place.stage == 0:
        on_step(place.cluster, replace(report, step=generation.step_of(place.cluster, report.step)))


class LocalWorlds(WorldOpener):
    """The worlds of one node in this process.

    Args:
        ranks: of all worlds in this process, by name.
        address: of the node.
    """

    def __init__(self, ranks: dict[str, list[Transport]], address: str):
        self._ranks, self._address = ranks, address

    async def open(self, name: str, addresses: Sequence[str], backups: Sequence[str] = ()) -> Transport:
        """See `WorldOpener`."""
        if name not in self._ranks:
            self._ranks[name] = [*world(len(addresses))]
        return self._ranks[name][addresses.index(self._address)]

    def lose(self, addresses: Iterable[str]) -> None:
        """See `WorldOpener`."""


class LocalDecisions(RoundDecisions):
    """The decisions on the rounds of a generation in this process: those of the run, up to its last round.

    Args:
        rounds: the last one committed before the generation ended; None: it did not end.
        refused: the rounds that were refused in the run, and are left out.
    """

    def __init__(self, rounds: int | None = None, refused: Collection[int] = ()):
        self._rounds = rounds
        self._refused = refused
        self._committed = 0
        self._changed = Notifier()

    def ends(self) -> bool:
        """See `RoundDecisions`."""
        return False

    async def wait_for_end(self) -> int:
        """See `RoundDecisions`."""
        return self._committed

    async def commit(self, round_: int) -> None:
        """See `RoundDecisions`."""
        self._committed = round_
        self._changed.notify_all()

    async def refuse(self, round_: int, cluster: int, fact: str) -> None:
        """See `RoundDecisions`. Raises UsageError: in the run it was committed."""
        raise UsageError(f"round {round_} is refused, but was not in the run ({fact}); give the orders of one run")

    def sender_of(self, round_: int) -> int | None:
        """See `RoundDecisions`; the order says what each cluster did then."""
        return None

    async def attempt(self, work: Coroutine[Any, Any, T]) -> T:
        """See `RoundDecisions`."""
        return await work

    async def complete(self, round_: int, work: Coroutine[Any, Any, None], has_average: Callable[[], bool]) -> RoundEnd:
        """See `RoundDecisions`."""
        if round_ in self._refused:
            work.close()
            return RoundEnd.REFUSED
        if self._rounds is not None and round_ > self._rounds:
            work.close()
            return RoundEnd.GENERATION_ENDS
        await work
        while self._committed < round_:
            await self._changed.wait()
        return RoundEnd.COMMITTED


def _training_part(training: RavnestTraining, orders: RunOrders) -> RavnestTraining:
    """The steps that this generation trained and later ones did not train again."""
    return replace(training, start=orders.generation.start.step, steps=orders.end_step or training.steps)


def _limit(training: RavnestTraining, orders: RunOrders, cluster: int) -> int | None:
    """The steps that one cluster did before the generation ended, by its own count; None: all."""
    if orders.successor is None:
        return None
    if not orders.went_on(cluster):
        return training.own_steps_averaged(orders.generation, cluster, orders.successor.continuation.rounds)
    backwards = sum(instruction.startswith("B") for instruction in orders.orders[ClusterPlace(cluster, 0)].instructions)
    return backwards // training.microbatches


def _prove(training: RavnestTraining, orders: RunOrders) -> None:
    """Check the instructions of each needed cluster as a program. Raises UsageError: they do not train its steps."""
    for cluster in orders.needed:
        stages = orders.generation.clusters[cluster]
        limit = _limit(training, orders, cluster)
        plan = training.job(orders.generation, cluster).plan
        steps = training.own_steps(cluster, len(orders.generation.clusters))[:limit]
        if not steps:
            continue
        stage_map = find(plan.schedule).stage_map(replace(plan.shape, steps=len(steps)))
        program = tuple(orders.orders[ClusterPlace(cluster, stage)].of_stage(stage)[0] for stage in range(len(stages)))
        microbatches = len(steps) * training.microbatches
        if orders.end_step or (orders.successor and not orders.went_on(cluster)):
            # What was done beyond a save or a round is not done again.
            program = tuple(
                tuple(instruction for instruction in row if instruction.microbatch < microbatches) for row in program
            )
        try:
            check(Program(stage_map, program))
        except ScheduleError as error:
            fact = f"the orders of cluster {cluster} do not train these steps (steps: {len(steps)})"
            raise UsageError(f"{fact}; give the orders of one whole run\n{error}") from error
