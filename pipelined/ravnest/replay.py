"""The replay of a run in one process: every node does again what its order says, over transports of this process.

The orders of each cluster are proved before they are followed, like any schedule. Imports torch.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from pipelined.actors.executor import Executor
from pipelined.aio.notifier import Notifier
from pipelined.aio.nursery import Nursery
from pipelined.errors import UsageError
from pipelined.programs.instructions import Program
from pipelined.programs.proof.check import check
from pipelined.ravnest.cluster import ClusterMember
from pipelined.ravnest.forming import UnequalClusters
from pipelined.ravnest.orders import RunOrders
from pipelined.ravnest.saving import Saving
from pipelined.ravnest.training import ClusterTraining
from pipelined.schedules import ScheduleError, find
from pipelined.state.store import DiskStore
from pipelined.training.step_report import StepReport
from transports import Transport
from transports.local import world

ONCE = 1 << 62
"""Rounds from one save to the next where only the last round is saved."""


async def replay(
    runs: Sequence[tuple[ClusterTraining, RunOrders]],
    executor: Executor,
    on_step: Callable[[int, StepReport], None] = lambda cluster, report: None,
) -> str:
    """Train again in the recorded order; returns the digest of the average.

    Args:
        runs: what the clusters trained that followed one another, and their orders; each begins with what those before
            it saved.
        executor: computes for all nodes.
        on_step: called with a cluster's number and each step of the training that it completed.
    Raises:
        UsageError: the orders do not train this. UnequalClusters.
    Cost: the computing of all nodes, and their memory.
    """
    parts = [(_part_of(training, orders), orders) for training, orders in runs]
    for training, orders in parts:
        _prove(training, orders)
    with TemporaryDirectory() as saved:
        training, last = parts[-1]
        saving = Saving(DiskStore(Path(saved), training.model.identity()), ONCE, last.clusters.begun.run)
        digests = [await _replay(training, orders, executor, on_step, saving) for training, orders in parts]
    return digests[-1]


async def _replay(
    training: ClusterTraining,
    orders: RunOrders,
    executor: Executor,
    on_step: Callable[[int, StepReport], None],
    saving: Saving,
) -> str:
    """Do again what the nodes of some clusters did up to the save that the next ones began with, or to the end.

    Args:
        saving: of their last round.
    """
    ranks, log, clusters = dict[str, list[Transport]](), LocalLog(), orders.clusters
    async with Nursery() as tasks:
        running = {}
        for (cluster, stage), order in orders.orders.items():
            worlds = LocalWorlds(ranks, clusters.rows[cluster][stage].address)
            member = ClusterMember(training, worlds, executor, order=order, saving=saving)

            def report(report: StepReport, cluster: int = cluster, stage: int = stage) -> None:
                if stage == 0:
                    on_step(cluster, replace(report, step=clusters.step_of(cluster, report.step)))

            running[cluster, stage] = tasks.create_task(member.train(clusters, (cluster, stage), report, log))
    digests = [running[cluster, 0].result() for cluster in range(len(clusters.rows))]
    if len(set(digests)) > 1:
        raise UnequalClusters(f"the clusters hold different averages (digests: {', '.join(digests)})")
    return digests[0]


class LocalWorlds:
    """The worlds of one node in this process.

    Args:
        ranks: of all worlds in this process, by name.
        address: of the node.
    """

    def __init__(self, ranks: dict[str, list[Transport]], address: str):
        self._ranks, self._address = ranks, address

    async def open(self, name: str, addresses: Sequence[str]) -> Transport:
        """See `OpensWorlds`."""
        if name not in self._ranks:
            self._ranks[name] = [*world(len(addresses))]
        return self._ranks[name][addresses.index(self._address)]


class LocalLog:
    """Rounds of nodes in this process, which stand when they are written."""

    def __init__(self) -> None:
        self._written, self._changed = 0, Notifier()

    async def write(self, number: int) -> None:
        """See `RoundLog`."""
        self._written = number
        self._changed.notify_all()

    async def stands(self, number: int) -> None:
        """See `RoundLog`."""
        while self._written < number:
            await self._changed.wait()


def _part_of(training: ClusterTraining, orders: RunOrders) -> ClusterTraining:
    """The steps that these clusters trained and later ones did not train again."""
    return replace(training, begin=orders.clusters.begun.step, steps=orders.until or training.steps)


def _prove(training: ClusterTraining, orders: RunOrders) -> None:
    for number, row in enumerate(orders.clusters.rows):
        plan, steps = training.job(orders.clusters, number).plan, training.steps_of(number, len(orders.clusters.rows))
        layout = find(plan.schedule).layout(replace(plan.shape, steps=len(steps)))
        program = tuple(orders.orders[number, stage].of_stage(stage)[0] for stage in range(len(row)))
        many = len(steps) * training.microbatches
        if orders.until:  # what was done beyond the save is not done again
            program = tuple(tuple(each for each in row if each.microbatch < many) for row in program)
        try:
            check(Program(layout, program))
        except ScheduleError as error:
            fact = f"the orders of cluster {number} do not train these steps (steps: {len(steps)})"
            raise UsageError(f"{fact}; give the orders of one whole run\n{error}") from error
