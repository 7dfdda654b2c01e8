"""The process that forms clusters, and then supervises them: it waits for nodes, plans, and writes a generation.

When a cluster is lost, or nodes that wait can form another one, it lets the generation end, so that another follows
(`supervision`). When all clusters are lost, it forms a generation of the nodes that are left. It holds no parameters,
and the clusters train on if it ends. Started again, it supervises the clusters that train. No torch.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from pipelined.aio.tasks import beside, with_timeout
from pipelined.errors import UsageError
from pipelined.membership.connection import LocalMember
from pipelined.membership.directory import Change, DirectoryRefusal
from pipelined.membership.task_record import TASK
from pipelined.process.reporting.progress import Say
from pipelined.ravnest.forming.continuation import Joining, rules_of
from pipelined.ravnest.forming.supervision import Supervision, write_waits
from pipelined.ravnest.planning.backups import plan_remaining_nodes, plan_with_backups
from pipelined.ravnest.planning.plan import PoolRequest
from pipelined.ravnest.records.generation import GENERATION, Generation
from pipelined.ravnest.records.nodes import NodeRecord
from pipelined.ravnest.records.progress import PROGRESS, ClusterProgress, common_digest
from pipelined.ravnest.records.view import RavnestView
from pipelined.state.stages.versions import Version, saved_steps

RETURN_S = 10.0
"""Seconds without a node that comes or leaves, after which clusters are formed of fewer nodes than requested."""


@dataclass(frozen=True)
class ClusterFormer:
    """Forms clusters of the first nodes that come, and supervises the training to its end.

    Args:
        nodes: how many nodes to wait for.
        request: what to plan; its pool is replaced by these nodes. After clusters were lost there may be fewer.
        on_step: called with a cluster's number and each step that it completes, in the order of the steps.
        say: prints a line.
        task: revision of the directory's record of what is trained; 0: there is none.
        return_s: see `RETURN_S`.
        resume: whether training goes on from a save of any run; else only if this run has one.
    """

    local: LocalMember
    nodes: int
    request: PoolRequest
    on_step: Callable[[int, ClusterProgress], None]
    say: Say
    return_s: float = RETURN_S
    resume: bool = False
    task: int = 0

    async def run(self) -> None:
        """Form clusters, or find those that train, and return when each has trained its last step.

        Raises:
            UsageError: the first nodes cannot hold the model, or as `plan_with_backups`; or another training replaced
                this one before any cluster was formed. UnequalClusters.
            DirectoryRefusal: another directory came in the place of this one, or one with another key.
        """
        view = RavnestView(self.local.directory, self.local.clock)
        with view.change_queue(PROGRESS) as changes:
            await beside(self._run(view, changes), view.follow((DirectoryRefusal,)), self._raise_when_replaced(view))

    async def _raise_when_replaced(self, view: RavnestView) -> None:
        await view.wait_for_changed_task(self.task)
        fact = "another `train` has replaced what is trained, before this one formed clusters"
        raise UsageError(f"{fact}; end that one first, or give this one another coordinator")

    async def _run(self, view: RavnestView, changes: deque[Change]) -> None:
        await view.wait_for(lambda: view.revision > 0)
        digests = None
        while digests is None:
            while (generation := view.current_generation) is None:
                await self._form(view)
            self._describe(generation)
            digests = await self._supervise(generation, view, changes)
        digest = common_digest(digests.values())
        await write_waits(view, "for another training: all steps of this one are trained")
        self.say(f"average {digest}")

    async def _supervise(
        self, generation: Generation, view: RavnestView, changes: deque[Change]
    ) -> Mapping[int, str] | None:
        """See `Supervision.run`; the nodes that left are counted in any case."""
        joining = Joining(view, self.request, self.nodes)
        clock = self.local.clock
        supervision = Supervision(
            generation, joining, changes, clock=clock, quiet_s=self.return_s, on_step=self.on_step, say=self.say
        )
        digests = await supervision.run()
        await supervision.count_departures()
        return digests

    async def _form(self, view: RavnestView) -> None:
        """Write a generation when enough nodes wait; returns also if another process has written one meanwhile."""
        await self._wait_for_nodes(view)
        while view.current_generation is None:
            nodes = {**view.nodes}
            revision = view.revision_of(GENERATION)
            try:
                generation = await self._planned_generation(view)
            except UsageError as error:
                await self._report_lack(view, error)
                await view.wait_for(partial(self._has_changed, view, nodes))
            else:
                await self._write(view, generation, revision)
                return

    async def _planned_generation(self, view: RavnestView) -> Generation:
        """The generation of the nodes that wait. Raises UsageError: they form none."""
        waiting = view.free_nodes[: self.nodes]
        version = self._start_version(view)
        pool = tuple(map(view.pool_node, waiting))
        request = replace(self.request, pool=pool, rules=rules_of(self.request, waiting))
        is_first = view.generation is None
        make_plan = plan_with_backups if is_first else partial(plan_remaining_nodes, nodes=self.nodes)
        plan = await asyncio.to_thread(make_plan, request)
        for number, cluster in enumerate(plan.clusters):
            if cluster.pace and cluster.pace.shortfall:
                self.say(f"cluster {number}: {cluster.pace_text}")
        return Generation.of(view.next_number, plan, waiting, version)

    async def _write(self, view: RavnestView, generation: Generation, revision: int) -> None:
        """Write a generation, unless there is another one than at this revision; returns when this view has it."""
        records = {GENERATION: generation.pack()}
        await view.write_unless_changed({GENERATION: revision, TASK: self.task}, records)
        await view.wait_for(lambda: view.revision_of(GENERATION) != revision)

    async def _report_lack(self, view: RavnestView, error: UsageError) -> None:
        """Say and write why the nodes form no clusters. Raises the error, where none was formed before."""
        if view.generation is None:
            await write_waits(view, f"for another `train`: this one forms no clusters of them ({error})")
            raise error
        self.say(f"{self.local.name}: waits for nodes; the remaining ones cannot form a cluster ({error})")
        await write_waits(view, f"because they cannot form a cluster ({error})")

    async def _wait_for_nodes(self, view: RavnestView) -> None:
        """Wait until enough nodes wait for a cluster; after clusters were lost, until no node comes or leaves any more.

        A remaining node first leaves its lost cluster, then joins again, and so lists all that it has saved.
        """
        if (missing_nodes := self.nodes - len(view.free_nodes)) > 0:
            nodes_text = (
                f"{missing_nodes} more node{'s' * (missing_nodes > 1)} ({len(view.free_nodes)} of {self.nodes} here)"
            )
            fewer_text = (
                f"; forms clusters of fewer after {self.return_s:g} s without a change" if view.generation else ""
            )
            self.say(f"{self.local.name}: waits for {nodes_text}{fewer_text}")
            quiet_text = f", or none has come for {self.return_s:g} s" if view.generation else ""
            await write_waits(view, f"until {self.nodes} nodes are there{quiet_text}")
        while not view.current_generation and len(view.free_nodes) < max(self.nodes, len(view.nodes)):
            change = view.wait_for(partial(self._has_changed, view, {**view.nodes}))
            try:
                await (with_timeout(self.local.clock, self.return_s, change) if view.generation else change)
            except TimeoutError:
                if 0 < len(view.nodes) == len(view.free_nodes):
                    return

    @staticmethod
    def _has_changed(view: RavnestView, nodes: Mapping[str, NodeRecord]) -> bool:
        return view.current_generation is not None or view.nodes != nodes

    def _start_version(self, view: RavnestView) -> Version:
        """What the next generation begins with.

        Raises:
            UsageError: the nodes hold no step that training can go on from.
        """
        version = view.saved_version
        steps = saved_steps(view.all_saved) or "nothing"
        if not version.step and (self.resume or view.all_saved):
            fact = f"the nodes hold no step that all stages saved (held: {steps})"
            if self.resume:
                raise UsageError(f"{fact}; start all that saved, each with the --checkpoint that it had")
            remedy = "against another loss, let all nodes share one --checkpoint, or add --backups"
            self.say(f"{fact}; training begins at step 0; {remedy}")
        return version

    def _describe(self, generation: Generation) -> None:
        for cluster, stages in enumerate(generation.clusters):
            places = (
                f"{place.holder.name} layers {place.first}-{place.end - 1} ({place.alive} alive)" for place in stages
            )
            start = ", from the average of the next round on" if generation.is_late(cluster) else ""
            self.say(f"cluster {cluster}: {', '.join(places)}{start}")
        if generation.start.lineage:
            self.say(f"training goes on after step {generation.start.step - 1}, as it was saved")
