"""The process that forms clusters, and then shows their steps: it waits for nodes, plans, and writes the clusters.

When a cluster is lost, or nodes that wait can form another one, it lets the clusters end, so that others go on. When
all are lost, it forms others of the nodes that are left. It holds no parameters, and the clusters train on if it ends.
Started again, it follows the clusters that train. No torch.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from pipelined.aio.nursery import beside, with_timeout
from pipelined.aio.progress import Say
from pipelined.directory import Change, Conflict
from pipelined.directory.membership.node import Node
from pipelined.errors import UsageError
from pipelined.ravnest.going_on import Joining, Newcomers, following, rules_of
from pipelined.ravnest.planning.backups import plan_of_those_left, plan_with_backups
from pipelined.ravnest.planning.plan import PoolRequest, RavnestPlan
from pipelined.ravnest.records import (
    CLUSTERS,
    ENDING,
    LOSSES,
    PROGRESS,
    WAITS,
    ClusterProgress,
    Clusters,
    ClustersEnding,
    Holder,
    NodeRecord,
    WaitingNodes,
)
from pipelined.ravnest.view import RavnestView
from pipelined.state.versions import Version, saved_steps

RETURN_S = 10.0
"""Seconds without a node that comes or leaves, after which clusters are formed of fewer nodes than requested."""


class UnequalClusters(Exception):
    """Clusters hold different parameters after the last round: a node computed something else than the others."""


@dataclass(frozen=True)
class ClusterFormer:
    """Forms clusters of the first nodes that come, and follows the training to its end.

    Args:
        nodes: how many nodes to wait for.
        request: what to plan; its pool is replaced by these nodes. After clusters were lost there may be fewer.
        on_step: called with a cluster's number and each step that it completes, in the order of the steps.
        say: prints a line.
        return_s: see `RETURN_S`.
        resume: whether training goes on from a save of any run; else only if this run has one.
    """

    node: Node
    nodes: int
    request: PoolRequest
    on_step: Callable[[int, ClusterProgress], None]
    say: Say
    return_s: float = RETURN_S
    resume: bool = False

    async def run(self) -> None:
        """Form clusters, or find those that train, and return when each has trained its last step.

        Raises:
            UsageError: the first nodes cannot hold the model, or as `plan_with_backups`. UnequalClusters.
        """
        view = RavnestView(self.node.directory, self.node.clock)
        with view.change_queue(PROGRESS) as changes:
            await beside(self._run(view, changes), view.follow())

    async def _run(self, view: RavnestView, changes: deque[Change]) -> None:
        await view.wait_for(lambda: view.revision > 0)
        digests = None
        while digests is None:
            while (clusters := view.current) is None:
                await self._form(view)
            self._describe(clusters)
            digests = await self._follow(view, changes, clusters)
            await self._count(view, clusters)
        if len(set(digests.values())) > 1:
            raise UnequalClusters(f"the clusters hold different averages (digests: {', '.join(digests.values())})")
        await self._note(view, "for another training: all steps of this one are trained")
        self.say(f"average {digests[0]}")

    async def _follow(self, view: RavnestView, changes: deque[Change], clusters: Clusters) -> Mapping[int, str] | None:
        """Show the steps of clusters to their end; returns their digests, or None: others follow, or must be formed."""
        nodes, since, planned, newcomers = {**view.nodes}, self.node.clock.now(), False, self._not_yet
        gone, refused, waits = set[Holder](), len(view.refused(clusters)), ""
        while True:
            seen = view.revision
            for holder in view.departed(clusters):
                if holder not in gone:
                    gone.add(holder)
                    self._describe_left(view, clusters, holder)
            if view.nodes != nodes:
                nodes, since, planned, newcomers = {**view.nodes}, self.node.clock.now(), False, self._not_yet
            if not planned and (len(nodes) >= self.nodes or self.node.clock.now() - since >= self.return_s):
                newcomers, planned = await Joining(view, self.request, self.nodes).newcomers(clusters), True
            while changes:
                self._report(clusters, changes.popleft())
            if len(view.refused(clusters)) > refused:
                refused = len(view.refused(clusters))
                self.say(f"round {max(view.refused(clusters))} was refused: {view.round_of(clusters).fact}")
            if view.is_done(clusters):
                return view.digests(clusters)
            if view.clusters != clusters:
                return None
            if not (intact := view.intact(clusters)):
                fact = f"{', '.join(view.missing(clusters))} left before the last step"
                self.say(f"{fact}; what the clusters had learned and not saved is lost, and others are formed")
                return None
            if view.ends(clusters) and view.stops(clusters).keys() >= {*intact}:
                await self._go_on(view, clusters, newcomers)
            elif not view.ends(clusters) and (newcomers or view.missing(clusters)):
                await self._end(view, clusters)
            await self._count(view, clusters)
            told = self._waiting(view, newcomers.waits) if view.free else waits
            if told != waits:
                self.say(told)
            waits = told
            await self._note(view, newcomers.waits if view.free else "")
            with suppress(TimeoutError):
                await with_timeout(self.node.clock, self.return_s, view.wait_for(partial(self._is_past, view, seen)))

    @property
    def _not_yet(self) -> Newcomers:
        return Newcomers(
            waits=f"until {self.nodes} nodes are there, or no node has come or left for {self.return_s:g} s"
        )

    @staticmethod
    def _waiting(view: RavnestView, fact: str) -> str:
        return f"without a cluster: {', '.join(node.name for node in view.free)}; waiting {fact}"

    @staticmethod
    async def _note(view: RavnestView, fact: str) -> None:
        """Write into the directory what the nodes without a cluster wait for."""
        if fact != view.waits:
            revision = view.waits_revision
            with suppress(Conflict):
                await view.directory.transact({WAITS: revision}, {WAITS: WaitingNodes(fact).pack()})
            await view.wait_for(lambda: view.waits_revision != revision)

    @staticmethod
    def _is_past(view: RavnestView, seen: int) -> bool:
        return view.revision != seen

    def _describe_left(self, view: RavnestView, clusters: Clusters, holder: Holder) -> None:
        """Say what goes on in the place of a node that left."""
        place = None if view.is_done(clusters) else clusters.place_of(holder)
        if place and clusters.has_backup(*place) and (remaining := view.remaining_at(clusters, *place)):
            self.say(f"{holder.name} left cluster {place[0]}; {remaining[0].name} goes on in its place")

    async def _count(self, view: RavnestView, clusters: Clusters) -> None:
        """Write the nodes that left these clusters, each incarnation once, for this process and later ones."""
        while not view.is_done(clusters) and (losses := view.losses.counted(view.departed(clusters))) != view.losses:
            revision = view.losses_revision
            with suppress(Conflict):
                await view.directory.transact({LOSSES: revision}, {LOSSES: losses.pack()})
            await view.wait_for(partial(lambda before: view.losses_revision != before, revision))

    async def _end(self, view: RavnestView, clusters: Clusters) -> None:
        """Let these clusters end, so that others go on."""
        with suppress(Conflict):
            ending = {ENDING: ClustersEnding(clusters.number).pack()}
            await view.directory.transact({CLUSTERS: view.clusters_revision}, ending)
        await view.wait_for(lambda: view.ends(clusters) or view.clusters != clusters)

    async def _go_on(self, view: RavnestView, clusters: Clusters, newcomers: Newcomers) -> None:
        """Write the clusters that follow these: those that are left, and late ones.

        Not if one that was not done has written progress meanwhile: then all of them may have trained their last step.
        """
        intact, revision = view.intact(clusters), view.clusters_revision
        stops = {number: stopped for number, stopped in view.stops(clusters).items() if number in intact}
        next_ = following(view.settled(clusters), self._next_number(view), view.rounds_of(clusters), stops, newcomers)
        if lost := view.missing(clusters):
            fact = f"{', '.join(lost)} left before the last step; clusters that train on: {len(stops)}"
            self.say(f"{fact}, steps to train again: {len(next_.going.again)}")
        undone = next(f"{number}" for number in range(len(clusters.rows)) if number not in view.digests(clusters))
        expected = {CLUSTERS: revision, f"{PROGRESS}{undone}": view.progress.revisions[undone]}
        with suppress(Conflict):
            await view.directory.transact(expected, {CLUSTERS: next_.pack()})
            await view.wait_for(lambda: view.clusters_revision != revision)

    @staticmethod
    def _next_number(view: RavnestView) -> int:
        """Greater than that of all clusters before, also where a resumed run's numbers are far above the revision."""
        return max(view.clusters.number if view.clusters else 0, view.clusters_revision, view.last_saved) + 1

    async def _form(self, view: RavnestView) -> None:
        """Write clusters when enough nodes wait; returns also if another process has written some meanwhile."""
        await self._wait_for_nodes(view)
        plan = None
        while plan is None:
            if view.current:
                return
            nodes, revision, waiting = {**view.nodes}, view.clusters_revision, view.free[: self.nodes]
            try:
                begun = self._begun(view)
                pool = tuple(map(view.pool_node, waiting))
                request = replace(self.request, pool=pool, rules=rules_of(self.request, waiting))
                plan = await asyncio.to_thread(self._plan, request, again=view.clusters is not None)
            except UsageError as error:
                if view.clusters is None:
                    raise
                self.say(f"{self.node.name}: waits for nodes; the remaining ones cannot form a cluster ({error})")
                await self._note(view, f"because they cannot form a cluster ({error})")
                await view.wait_for(partial(self._has_changed, view, nodes))
        for number, cluster in enumerate(plan.clusters):
            if cluster.pace and cluster.pace.shortfall:
                self.say(f"cluster {number}: {cluster.pace_text}")
        clusters = Clusters.of(self._next_number(view), plan, waiting, begun)
        with suppress(Conflict):
            await view.directory.transact({CLUSTERS: revision}, {CLUSTERS: clusters.pack()})
        await view.wait_for(lambda: view.clusters_revision != revision)

    async def _wait_for_nodes(self, view: RavnestView) -> None:
        """Wait until enough nodes wait for a cluster; after clusters were lost, until no node comes or leaves any more.

        A node that is left leaves its lost cluster first, and joins again: then it lists all that it has saved.
        """
        if (missing := self.nodes - len(view.free)) > 0:
            quiet = f" none has come for {self.return_s:g} s" if view.clusters else ""
            self.say(f"{self.node.name}: waits for {missing} of {self.nodes} nodes{quiet and ', until'}{quiet}")
            await self._note(view, f"until {self.nodes} nodes are there{quiet and ', or'}{quiet}")
        while not view.current and len(view.free) < max(self.nodes, len(view.nodes)):
            change = view.wait_for(partial(self._has_changed, view, {**view.nodes}))
            try:
                await (with_timeout(self.node.clock, self.return_s, change) if view.clusters else change)
            except TimeoutError:
                if 0 < len(view.nodes) == len(view.free):
                    return

    @staticmethod
    def _has_changed(view: RavnestView, nodes: Mapping[str, NodeRecord]) -> bool:
        return view.current is not None or view.nodes != nodes

    def _begun(self, view: RavnestView) -> Version:
        """What the next clusters begin with.

        Raises:
            UsageError: the nodes hold no step that training can go on from.
        """
        begun, held = view.begun, saved_steps(view.all_saved) or "nothing"
        if not begun.step and (self.resume or view.all_saved):
            fact = f"the nodes hold no step that all stages saved (held: {held})"
            if self.resume:
                raise UsageError(f"{fact}; start all that saved, each with the --checkpoint that it had")
            self.say(f"{fact}; training begins at step 0")
        return begun

    def _plan(self, request: PoolRequest, *, again: bool) -> RavnestPlan:
        return plan_of_those_left(request, self.nodes) if again else plan_with_backups(request)

    def _describe(self, clusters: Clusters) -> None:
        for number, row in enumerate(clusters.rows):
            places = (f"{p.holder.name} layers {p.first}-{p.end - 1} ({p.alive} alive)" for p in row)
            late = "" if number < clusters.kept else ", from the average of the next round on"
            self.say(f"cluster {number}: {', '.join(places)}{late}")
        if clusters.begun.lineage:
            self.say(f"training goes on after step {clusters.begun.step - 1}, as it was saved")

    def _report(self, clusters: Clusters, change: Change) -> None:
        """Report a step of these clusters."""
        number = change.key.removeprefix(PROGRESS)
        if change.entry is None or not number.isdecimal() or int(number) >= len(clusters.rows):
            return
        with suppress(ValueError):
            progress = ClusterProgress.unpack(change.entry.value)
            if progress.clusters == clusters.number and not progress.digest:
                self.on_step(int(number), progress)
