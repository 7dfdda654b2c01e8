"""Clusters that train, watched by the process that formed them: it shows their steps, and writes those that follow.

Clusters end early because a node left that has no backup, or because nodes that wait can join. Those that are left go
on in the clusters that follow (`going_on`). No torch.
"""

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from pipelined.aio.clock import Clock
from pipelined.aio.nursery import with_timeout
from pipelined.aio.progress import Say
from pipelined.directory import Change
from pipelined.ravnest.going_on import Joining, Newcomers, following
from pipelined.ravnest.planning.losses import LossCounts
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
    WaitingNodes,
)
from pipelined.ravnest.view import RavnestView


async def write_waits(view: RavnestView, fact: str) -> None:
    """Write into the directory what the nodes without a cluster wait for."""
    if fact != view.waits:
        revision = view.waits_revision
        await view.write_unless_changed({WAITS: revision}, {WAITS: WaitingNodes(fact).pack()})
        await view.wait_for(lambda: view.waits_revision != revision)


async def _write_losses(view: RavnestView, losses: LossCounts) -> None:
    revision = view.losses_revision
    await view.write_unless_changed({LOSSES: revision}, {LOSSES: losses.pack()})
    await view.wait_for(lambda: view.losses_revision != revision)


class Supervision:
    """Watches clusters until each has trained its last step, or others are to train.

    Args:
        joining: what nodes that wait can become beside these clusters.
        changes: of the directory's records of progress, in order.
        quiet_s: seconds without a node that comes or leaves, after which no further node is waited for.
        on_step: called with a cluster's number and each step that it completes, in the order of the steps.
        say: prints a line.
    """

    def __init__(
        self,
        clusters: Clusters,
        joining: Joining,
        changes: deque[Change],
        *,
        clock: Clock,
        quiet_s: float,
        on_step: Callable[[int, ClusterProgress], None],
        say: Say,
    ):
        self._view, self._clusters, self._joining, self._changes = joining.view, clusters, joining, changes
        self._clock, self._quiet_s, self._on_step, self._say = clock, quiet_s, on_step, say
        self._departed, self._refused, self._waiting_text = set[Holder](), len(self._view.refused(clusters)), ""
        self._expect_nodes()

    async def run(self) -> Mapping[int, str] | None:
        """Show what happens in these clusters, and write the ones that follow.

        Returns: their digests, when each has trained its last step; None: others follow, or must be formed.
        """
        view, clusters = self._view, self._clusters
        while True:
            seen = view.revision
            self._show_departures()
            await self._plan_newcomers()
            self._show_steps()
            self._show_refusals()
            if view.is_done(clusters):
                return view.digests(clusters)
            if view.clusters != clusters or self._all_are_lost():
                return None
            await self._let_others_go_on()
            await self.count_losses()
            await self._note_waiting()
            await self._wait_for_change(seen)

    async def count_losses(self) -> None:
        """Write the nodes that left these clusters, each incarnation once, for this process and later ones."""
        while not self._view.is_done(self._clusters):
            losses = self._view.losses.counted(self._view.departed(self._clusters))
            if losses == self._view.losses:
                return
            await _write_losses(self._view, losses)

    def _show_departures(self) -> None:
        """Say once of each node that left which one goes on in its place."""
        view, clusters = self._view, self._clusters
        for holder in view.departed(clusters):
            if holder in self._departed:
                continue
            self._departed.add(holder)
            place = None if view.is_done(clusters) else clusters.place_of(holder)
            if place and clusters.has_backup(*place) and (remaining := view.remaining_at(clusters, *place)):
                self._say(f"{holder.name} left cluster {place[0]}; {remaining[0].name} goes on in its place")

    def _show_steps(self) -> None:
        """Report the steps that these clusters completed; other records, and unreadable ones, are ignored."""
        while self._changes:
            change = self._changes.popleft()
            number = change.key.removeprefix(PROGRESS)
            if change.entry is None or not number.isdecimal() or int(number) >= len(self._clusters.rows):
                continue
            with suppress(ValueError):
                progress = ClusterProgress.unpack(change.entry.value)
                if progress.clusters == self._clusters.number and not progress.digest:
                    self._on_step(int(number), progress)

    def _show_refusals(self) -> None:
        refused = self._view.refused(self._clusters)
        if len(refused) > self._refused:
            self._refused = len(refused)
            self._say(f"round {max(refused)} was refused: {self._view.round_of(self._clusters).fact}")

    def _all_are_lost(self) -> bool:
        if self._view.intact(self._clusters):
            return False
        fact = f"{', '.join(self._view.missing(self._clusters))} left before the last step"
        self._say(f"{fact}; what the clusters had learned and not saved is lost, and others are formed")
        return True

    def _expect_nodes(self) -> None:
        """Wait for further nodes from now on, before the ones that wait are planned."""
        self._nodes, self._since, self._is_planned = {**self._view.nodes}, self._clock.now(), False
        fact = f"until {self._joining.nodes} nodes are there, or no node has come or left for {self._quiet_s:g} s"
        self._newcomers = Newcomers(waits=fact)

    async def _plan_newcomers(self) -> None:
        """Plan what the nodes that wait become, once after each change of the nodes."""
        if self._view.nodes != self._nodes:
            self._expect_nodes()
        is_quiet = self._clock.now() - self._since >= self._quiet_s
        if not self._is_planned and (len(self._nodes) >= self._joining.nodes or is_quiet):
            self._newcomers = await self._joining.newcomers(self._clusters)
            self._is_planned = True

    async def _let_others_go_on(self) -> None:
        """End these clusters if others are to follow; when all that are left have stopped, write those."""
        view, clusters = self._view, self._clusters
        if not view.ends(clusters):
            if self._newcomers or view.missing(clusters):
                await self._end_clusters()
        elif view.stops(clusters).keys() >= {*view.intact(clusters)}:
            await self._write_next_clusters()

    async def _end_clusters(self) -> None:
        view, clusters = self._view, self._clusters
        ending = {ENDING: ClustersEnding(clusters.number).pack()}
        await view.write_unless_changed({CLUSTERS: view.clusters_revision}, ending)
        await view.wait_for(lambda: view.ends(clusters) or view.clusters != clusters)

    async def _write_next_clusters(self) -> None:
        """Write the clusters that follow these: those that are left, and late ones.

        Not if one that was not done has written progress meanwhile: then all of them may have trained their last step.
        """
        view, clusters = self._view, self._clusters
        intact, revision = view.intact(clusters), view.clusters_revision
        stops = {number: stopped for number, stopped in view.stops(clusters).items() if number in intact}
        rounds = view.rounds_of(clusters)
        next_ = following(view.settled(clusters), view.next_number, rounds, stops, self._newcomers)
        if lost := view.missing(clusters):
            fact = f"{', '.join(lost)} left before the last step; clusters that train on: {len(stops)}"
            self._say(f"{fact}, steps to train again: {len(next_.going.steps_to_repeat)}")
        undone = next(f"{number}" for number in range(len(clusters.rows)) if number not in view.digests(clusters))
        expected = {CLUSTERS: revision, f"{PROGRESS}{undone}": view.progress.revisions[undone]}
        if await view.write_unless_changed(expected, {CLUSTERS: next_.pack()}) is None:
            await view.wait_for(lambda: view.clusters_revision != revision)

    async def _note_waiting(self) -> None:
        """Say and write what the nodes without a cluster wait for."""
        free, fact = self._view.free, self._newcomers.waits
        text = f"without a cluster: {', '.join(node.name for node in free)}; waiting {fact}"
        if free and text != self._waiting_text:
            self._say(text)
            self._waiting_text = text
        await write_waits(self._view, fact if free else "")

    async def _wait_for_change(self, seen: int) -> None:
        """Wait until the view is past this revision, or until the nodes may be quiet."""
        with suppress(TimeoutError):
            change = self._view.wait_for(lambda: self._view.revision != seen)
            await with_timeout(self._clock, self._quiet_s, change)
