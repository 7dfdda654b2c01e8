"""A generation that trains, watched by the process that formed it: it shows the steps, and writes the one that follows.

A generation ends early because a node left that has no backup, or because nodes that wait can join. The clusters that
are left go on in the generation that follows (`continuation`). No torch.
"""

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from pipelined.aio.clock import Clock
from pipelined.aio.tasks import with_timeout
from pipelined.membership.directory import Change
from pipelined.process.reporting.progress import Say
from pipelined.ravnest.forming.continuation import Joining, Newcomers, next_generation
from pipelined.ravnest.records.generation import ENDING, GENERATION, Generation, GenerationEnding
from pipelined.ravnest.records.nodes import DEPARTURES, WAITS, WaitingNodes
from pipelined.ravnest.records.places import Holder
from pipelined.ravnest.records.progress import PROGRESS, ClusterProgress
from pipelined.ravnest.records.view import RavnestView


async def write_waits(view: RavnestView, fact: str) -> None:
    """Write into the directory what the nodes without a cluster wait for."""
    if fact != view.wait_text:
        await view.replace_record(WAITS, WaitingNodes(fact))


class Supervision:
    """Watches a generation until each cluster has trained its last step, or another generation is to train.

    Args:
        joining: what nodes that wait can become beside its clusters.
        changes: of the directory's records of progress, in order.
        quiet_s: seconds without a node that comes or leaves, after which no further node is waited for.
        on_step: called with a cluster's number and each step that it completes, in the order of the steps.
        say: prints a line.
    """

    def __init__(
        self,
        generation: Generation,
        joining: Joining,
        changes: deque[Change],
        *,
        clock: Clock,
        quiet_s: float,
        on_step: Callable[[int, ClusterProgress], None],
        say: Say,
    ):
        self._view = joining.view
        self._generation = generation
        self._joining = joining
        self._changes = changes
        self._clock = clock
        self._quiet_s = quiet_s
        self._on_step = on_step
        self._say = say
        self._departed = set[Holder]()
        self._refusals = len(self._view.refused(generation))
        self._waiting_text = ""
        self._expect_nodes()

    async def run(self) -> Mapping[int, str] | None:
        """Show what happens in this generation, and write the one that follows.

        Returns: the clusters' digests, when each has trained its last step; None: another follows, or must be formed.
        """
        view, generation = self._view, self._generation
        while True:
            revision = view.revision
            self._show_departures()
            await self._plan_newcomers()
            self._show_steps()
            self._show_refusals()
            if view.is_done(generation):
                return view.digests(generation)
            if view.generation != generation or self._all_are_lost():
                return None
            await self._let_clusters_go_on()
            await self.count_departures()
            await self._note_waiting()
            await self._wait_for_change(revision)

    async def count_departures(self) -> None:
        """Write the nodes that left this generation, each incarnation once, for this process and later ones."""
        while not self._view.is_done(self._generation):
            departures = self._view.departures.with_departed(self._view.departed(self._generation))
            if departures == self._view.departures:
                return
            await self._view.replace_record(DEPARTURES, departures)

    def _show_departures(self) -> None:
        """Say once of each node that left which one goes on in its place."""
        view, generation = self._view, self._generation
        for holder in view.departed(generation):
            if holder in self._departed:
                continue
            self._departed.add(holder)
            place = None if view.is_done(generation) else generation.place_of(holder)
            if place and generation.backup_at(place) and (remaining := view.remaining_at(generation, place)):
                self._say(f"{holder.name} left cluster {place.cluster}; {remaining[0].name} goes on in its place")

    def _show_steps(self) -> None:
        """Report the steps that its clusters completed; other records, and unreadable ones, are ignored."""
        while self._changes:
            change = self._changes.popleft()
            cluster = change.key.removeprefix(PROGRESS)
            if change.entry is None or not cluster.isdecimal() or int(cluster) >= len(self._generation.clusters):
                continue
            with suppress(ValueError):
                progress = ClusterProgress.unpack(change.entry.value)
                if progress.generation == self._generation.number and not progress.digest:
                    self._on_step(int(cluster), progress)

    def _show_refusals(self) -> None:
        refused = self._view.refused(self._generation)
        if len(refused) > self._refusals:
            self._refusals = len(refused)
            self._say(f"round {max(refused)} was refused: {self._view.round_of(self._generation).fact}")

    def _all_are_lost(self) -> bool:
        if self._view.intact(self._generation):
            return False
        fact = f"{', '.join(self._view.missing(self._generation))} left before the last step"
        self._say(f"{fact}; what the clusters had learned and not saved is lost, and others are formed")
        return True

    def _expect_nodes(self) -> None:
        """Wait for further nodes from now on, before the ones that wait are planned."""
        self._nodes = {**self._view.nodes}
        self._quiet_since = self._clock.now()
        self._is_planned = False
        fact = f"until {self._joining.nodes} nodes are there, or no node has come or left for {self._quiet_s:g} s"
        self._newcomers = Newcomers(wait_text=fact)

    async def _plan_newcomers(self) -> None:
        """Plan what the nodes that wait become, once after each change of the nodes."""
        if self._view.nodes != self._nodes:
            self._expect_nodes()
        is_quiet = self._clock.now() - self._quiet_since >= self._quiet_s
        if not self._is_planned and (len(self._nodes) >= self._joining.nodes or is_quiet):
            self._newcomers = await self._joining.newcomers(self._generation)
            self._is_planned = True

    async def _let_clusters_go_on(self) -> None:
        """End this generation if another is to follow; when all clusters that are left have stopped, write that one."""
        view, generation = self._view, self._generation
        if not view.ends(generation):
            if self._newcomers or view.missing(generation):
                await self._end_generation()
        elif view.stops(generation).keys() >= {*view.intact(generation)}:
            await self._write_next_generation()

    async def _end_generation(self) -> None:
        view, generation = self._view, self._generation
        ending = {ENDING: GenerationEnding(generation.number).pack()}
        await view.write_unless_changed({GENERATION: view.revision_of(GENERATION)}, ending)
        await view.wait_for(lambda: view.ends(generation) or view.generation != generation)

    async def _write_next_generation(self) -> None:
        """Write the generation that follows: the clusters that are left, and late ones.

        Nothing is written if a cluster that was not done has written progress since this process last read it: all
        clusters may have trained their last step then.
        """
        view, generation = self._view, self._generation
        intact = view.intact(generation)
        revision = view.revision_of(GENERATION)
        stops = {cluster: stopped for cluster, stopped in view.stops(generation).items() if cluster in intact}
        rounds = view.rounds_of(generation)
        successor = next_generation(view.with_remaining(generation), view.next_number, rounds, stops, self._newcomers)
        if lost_nodes := view.missing(generation):
            fact = f"{', '.join(lost_nodes)} left before the last step; clusters that train on: {len(stops)}"
            self._say(f"{fact}, steps to train again: {len(successor.continuation.steps_to_repeat)}")
        unfinished = str(min({*range(len(generation.clusters))} - view.digests(generation).keys()))
        revisions = {GENERATION: revision, f"{PROGRESS}{unfinished}": view.progress.revisions[unfinished]}
        if await view.write_unless_changed(revisions, {GENERATION: successor.pack()}) is None:
            await view.wait_for(lambda: view.revision_of(GENERATION) != revision)

    async def _note_waiting(self) -> None:
        """Say and write what the nodes without a cluster wait for."""
        free_nodes, fact = self._view.free_nodes, self._newcomers.wait_text
        text = f"without a cluster: {', '.join(node.name for node in free_nodes)}; waiting {fact}"
        if free_nodes and text != self._waiting_text:
            self._say(text)
            self._waiting_text = text
        await write_waits(self._view, fact if free_nodes else "")

    async def _wait_for_change(self, revision: int) -> None:
        """Wait until the view is past this revision, or until the nodes may be quiet."""
        with suppress(TimeoutError):
            change = self._view.wait_for(lambda: self._view.revision != revision)
            await with_timeout(self._clock, self._quiet_s, change)
