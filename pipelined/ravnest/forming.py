"""The process that forms clusters, and then shows their steps: it waits for nodes, plans, and writes the clusters.

It holds no parameters, and the clusters train on if it ends. Started again, it follows the clusters that stand. No
torch.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from pipelined.aio.nursery import beside
from pipelined.aio.progress import Say
from pipelined.directory import Change, Conflict
from pipelined.membership.node import Node
from pipelined.ravnest.planning.plan import PoolRequest, make_plan
from pipelined.ravnest.records import CLUSTERS, PROGRESS, ClusterProgress, Clusters, NodeRecord
from pipelined.ravnest.view import RavnestView


class NodeLost(Exception):
    """A node of a cluster is gone, and with it what its cluster learned since the last round."""


class UnequalClusters(Exception):
    """Clusters hold different parameters after the last round: a node computed something else than the others."""


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
        """Form clusters, or find those that stand, and return when each has trained its last step.

        Raises:
            UsageError: the nodes cannot hold the model, or as `make_plan`.
            NodeLost: a node left before its cluster was done. UnequalClusters.
        """
        view = RavnestView(self.node.directory, self.node.clock)
        with view.change_queue(PROGRESS) as changes:
            await beside(self._run(view, changes), view.follow())

    async def _run(self, view: RavnestView, changes: deque[Change]) -> None:
        await view.wait_for(lambda: view.revision > 0)
        while (clusters := view.standing) is None:
            await self._form(view)
        self._describe(clusters)
        while True:
            while changes:
                self._report(clusters, changes.popleft())
            if len(digests := view.digests(clusters)) == len(clusters.rows):
                break
            if lost := view.missing(clusters):
                fact = f"{', '.join(lost)} left before the last step; what their clusters had learned is lost"
                raise NodeLost(f"{fact}; start `train` again: it forms clusters anew, and training begins again")
            await view.next_change()
        if len(set(digests.values())) > 1:
            raise UnequalClusters(f"the clusters hold different averages (digests: {', '.join(digests.values())})")
        self.say(f"average {digests[0]}")

    async def _form(self, view: RavnestView) -> None:
        """Write clusters when enough nodes wait; returns also if another process has written some meanwhile."""
        if (missing := self.nodes - len(view.free)) > 0:
            self.say(f"{self.node.name}: waits for {missing} of {self.nodes} nodes")
        await view.wait_for(lambda: view.standing or len(view.free) >= self.nodes)
        if view.standing:
            return
        found, revision = view.free[: self.nodes], view.clusters_revision
        clusters = await asyncio.to_thread(self._planned, revision + 1, found)
        with suppress(Conflict):
            await view.directory.transact({CLUSTERS: revision}, {CLUSTERS: clusters.pack()})
        await view.wait_for(lambda: view.clusters_revision != revision)

    def _planned(self, number: int, nodes: list[NodeRecord]) -> Clusters:
        """The clusters of these nodes.

        Args:
            number: above the revision of the clusters before, and so above their number.
        """
        plan = make_plan(replace(self.request, pool=tuple(node.pool_node for node in nodes)))
        return Clusters.of(number, plan, {node.name: node for node in nodes})

    def _describe(self, clusters: Clusters) -> None:
        for number, row in enumerate(clusters.rows):
            places = (f"{p.name} layers {p.first}-{p.end - 1} ({p.alive} alive)" for p in row)
            self.say(f"cluster {number}: {', '.join(places)}")

    def _report(self, clusters: Clusters, change: Change) -> None:
        """Report a step of these clusters."""
        number = change.key.removeprefix(PROGRESS)
        if change.entry is None or not number.isdecimal() or int(number) >= len(clusters.rows):
            return
        with suppress(ValueError):
            progress = ClusterProgress.unpack(change.entry.value)
            if progress.clusters == clusters.number and not progress.digest:
                self.on_step(int(number), progress)
