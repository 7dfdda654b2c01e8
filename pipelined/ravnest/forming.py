"""The process that forms clusters and looks on: it waits for nodes, plans, writes the clusters, follows their steps.

It holds no parameters, and the clusters train on if it ends. No torch.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from pipelined.aio.nursery import beside
from pipelined.aio.progress import Say
from pipelined.directory import Change, Conflict
from pipelined.membership.client import Node
from pipelined.ravnest.planning.plan import PoolRequest, make_plan
from pipelined.ravnest.records import CLUSTERS, PROGRESS, ClusterProgress, Clusters
from pipelined.ravnest.view import RavnestView


class NodeLost(Exception):
    """A node of a cluster is gone, and with it what its cluster learned since the last round."""


class UnequalClusters(Exception):
    """Clusters hold different parameters behind the last round: a node computed something else than the others."""


@dataclass(frozen=True)
class ClusterFormer:
    """Forms clusters of the first nodes that come, and follows the training to its end.

    Args:
        nodes: how many nodes to wait for.
        request: what to plan; its pool is replaced by these nodes.
        on_step: called with a cluster's number and each step that it completes, in the order of the steps.
        say: prints a line.
    """

    node: Node
    nodes: int
    request: PoolRequest
    on_step: Callable[[int, ClusterProgress], None]
    say: Say

    async def run(self) -> None:
        """Form clusters, and return when each has trained its last step.

        Raises:
            UsageError: the nodes cannot hold the model, or as `make_plan`.
            NodeLost: a node left before its cluster was done. UnequalClusters.
        """
        view = RavnestView(self.node.directory, self.node.clock)
        with view.change_queue(PROGRESS) as changes:
            await beside(self._run(view, changes), view.follow())

    async def _run(self, view: RavnestView, changes: deque[Change]) -> None:
        await view.wait_for(lambda: view.revision > 0)
        if (missing := self.nodes - len(view.nodes)) > 0:
            self.say(f"{self.node.name}: waits for {missing} of {self.nodes} nodes")
        clusters = await self._form(view)
        done = dict[int, str]()
        while len(done) < len(clusters.rows):
            while changes:
                done |= self._report(clusters, changes.popleft())
            if lost := sorted(set(view.missing(clusters)) - _names(clusters, set(done))):
                fact = f"{', '.join(lost)} left before the last step, and with it what its cluster had learned"
                raise NodeLost(f"{fact}; start `train` again: it forms clusters anew, and training begins again")
            if len(done) < len(clusters.rows):
                await view.next_change()
        if len(set(done.values())) > 1:
            raise UnequalClusters(f"the clusters hold different averages (digests: {', '.join(done.values())})")
        self.say(f"average {done[0]}")

    async def _form(self, view: RavnestView) -> Clusters:
        """Write the clusters, when there are enough nodes; again if another process wrote others meanwhile."""
        while True:
            await view.wait_for(lambda: len(view.nodes) >= self.nodes)
            found = sorted(view.nodes.values(), key=lambda node: node.incarnation)[: self.nodes]
            request = replace(self.request, pool=tuple(node.pool_node for node in found))
            plan = await asyncio.to_thread(make_plan, request)
            number = 1 + (view.clusters.number if view.clusters else 0)
            clusters = Clusters.of(number, plan, {node.name: node.address for node in found})
            with suppress(Conflict):
                await view.directory.transact({CLUSTERS: view.clusters_revision}, {CLUSTERS: clusters.pack()})
                self._describe(clusters)
                return clusters
            await view.next_change()

    def _describe(self, clusters: Clusters) -> None:
        for number, row in enumerate(clusters.rows):
            places = (f"{p.name} layers {p.first}-{p.end - 1} ({p.alive} alive)" for p in row)
            self.say(f"cluster {number}: {', '.join(places)}")

    def _report(self, clusters: Clusters, change: Change) -> dict[int, str]:
        """Report a step of these clusters; returns the cluster with its digest if that was the last one."""
        number = change.key.removeprefix(PROGRESS)
        if change.entry is None or not number.isdecimal() or int(number) >= len(clusters.rows):
            return {}
        with suppress(ValueError):
            progress = ClusterProgress.unpack(change.entry.value)
            if progress.clusters == clusters.number and progress.digest:
                return {int(number): progress.digest}
            if progress.clusters == clusters.number:
                self.on_step(int(number), progress)
        return {}


def _names(clusters: Clusters, numbers: set[int]) -> set[str]:
    """The nodes of some clusters."""
    return {place.name for number, row in enumerate(clusters.rows) if number in numbers for place in row}
