"""A node: it joins, waits until it is in a cluster, trains its stage, and waits again.

The directory lists it while its lease lasts. A cluster ends when one of its nodes leaves; the others wait for the next
clusters. Imports torch through the cluster's training.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from pipelined.aio.nursery import Nursery, beside
from pipelined.aio.progress import Say
from pipelined.directory import Conflict, CutOff, LeaseLost
from pipelined.directory.registration import registered
from pipelined.membership.client import Node
from pipelined.membership.view import RETRY_S, NoLongerValid
from pipelined.ravnest.cluster import ClusterMember
from pipelined.ravnest.records import NODES, PROGRESS, ROUND, ClusterProgress, Clusters, NodeRecord, RoundRecord
from pipelined.ravnest.view import RavnestView
from pipelined.training.step_report import StepReport
from transports import TransportError


@dataclass(frozen=True)
class Capacity:
    """What a node offers: bytes of RAM for the model, bytes a second of its line, and its speed (0: not known)."""

    ram: int
    bandwidth: float
    flops: float = 0.0


class RavnestNode:
    """One node.

    Args:
        node: this process; its name is unique among the nodes.
        member: trains its stage in a cluster.
        lease_s: seconds without a heartbeat after which it is removed.
        say: prints a line.
    """

    def __init__(self, node: Node, member: ClusterMember, capacity: Capacity, lease_s: float, say: Say):
        self._node, self._member, self._capacity, self._lease_s, self._say = node, member, capacity, lease_s, say
        self.view = RavnestView(node.directory, node.clock)

    async def run(self) -> None:
        """Take part until cancelled.

        Raises:
            NameTaken: another process has this node's name. AgreedError: the training diverged.
        """
        await beside(self._live(), self.view.follow(), self._failure())

    async def _live(self) -> None:
        node, address = self._node, self._node.endpoint.address
        while True:
            try:
                key = NODES + node.name
                async with registered(node.directory, key, self._lease_s, node.clock, address) as registration:
                    record = NodeRecord(
                        node.name,
                        address,
                        registration.incarnation,
                        self._capacity.ram,
                        self._capacity.bandwidth,
                        self._capacity.flops,
                    )
                    await registration.put(record)
                    await self._take_part()
            except (LeaseLost, CutOff) as error:
                self._say(f"{node.name}: lost its membership ({error or type(error).__name__}); joins again")
                await node.clock.sleep(RETRY_S)

    async def _take_part(self) -> None:
        """Train in one cluster after another."""
        view, name, last = self.view, self._node.name, 0
        while True:
            self._say(f"{name}: waits for a cluster")
            clusters = await view.wait_for(partial(self._assigned, last))
            last = clusters.number
            try:
                async with view.while_holds(partial(self._is_newest, clusters)):
                    await self._train(clusters)
            except (TransportError, NoLongerValid) as error:
                self._say(f"{name}: its cluster ended ({str(error) or 'others were formed'})")

    def _assigned(self, last: int) -> Clusters | None:
        """The clusters that this node is in, if they are newer than `last`."""
        found = self.view.clusters
        if found is None or found.number <= last:
            return None
        return found if found.place_of(self._node.endpoint.address) else None

    def _is_newest(self, clusters: Clusters) -> bool:
        return self.view.clusters is None or self.view.clusters.number == clusters.number

    async def _train(self, clusters: Clusters) -> None:
        cluster, stage = clusters.place_of(self._node.endpoint.address) or (0, 0)
        place = clusters.rows[cluster][stage]
        layers = f"layers {place.first}-{place.end - 1}, at most {place.alive} microbatches alive"
        self._say(f"{self._node.name}: cluster {cluster}, stage {stage}: {layers}")
        steps, last = asyncio.Queue[ClusterProgress](), ClusterProgress(clusters.number, 0, 0.0, [], 0.0, "")

        def on_step(report: StepReport) -> None:
            nonlocal last
            number, delays = cluster + report.step * len(clusters.rows), list(report.staleness)
            last = ClusterProgress(clusters.number, number, report.loss, delays, report.step_s, "")
            steps.put_nowait(last)

        async with Nursery() as tasks:
            writing = tasks.create_task(self._write_progress(cluster, steps))
            digest = await self._member.train(clusters, on_step if stage == 0 else _ignore, self)
            if stage == 0:
                steps.put_nowait(replace(last, digest=digest))
            else:
                writing.cancel()
        self._say(f"{self._node.name}: cluster {cluster} has trained its last step")

    async def _write_progress(self, cluster: int, steps: "asyncio.Queue[ClusterProgress]") -> None:
        """Write each step of this node's cluster to the directory, in order, up to the one with the digest."""
        digest = ""
        while not digest:
            progress = await steps.get()
            await self._node.directory.transact({}, {f"{PROGRESS}{cluster}": progress.pack()})
            digest = progress.digest

    async def write(self, clusters: Clusters, number: int) -> None:
        """See `RoundLog`. Raises NoLongerValid: newer clusters were formed."""
        record = RoundRecord(clusters.number, number)
        while self.view.clusters == clusters:
            with suppress(Conflict):
                await self._node.directory.transact({ROUND: self.view.round_revision}, {ROUND: record.pack()})
                return
            await self.view.next_change()  # the record of earlier clusters was not read yet
        raise NoLongerValid("newer clusters were formed")

    async def stands(self, clusters: Clusters, number: int) -> None:
        """See `RoundLog`."""
        await self.view.wait_for(lambda: self.view.rounds_of(clusters) >= number)

    async def _failure(self) -> None:
        await asyncio.shield(self._node.endpoint.failed)


def _ignore(report: StepReport) -> None:
    """The steps of a cluster are reported by its first node."""
