"""What a node writes to the directory about its cluster: its steps, and rounds of averaging.

Each write holds only while this incarnation is listed and its clusters are the last. So a node that was stopped, and
runs again after its cluster ended, changes nothing.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from pipelined.directory import Conflict
from pipelined.directory.record import Record
from pipelined.directory.registration import Registration
from pipelined.membership.view import NoLongerValid
from pipelined.ravnest.records import CLUSTERS, PROGRESS, ROUND, ClusterProgress, Clusters, RoundRecord
from pipelined.ravnest.view import RavnestView
from pipelined.training.step_report import StepReport


class ClusterLog:
    """One node's log of its cluster.

    Args:
        registration: of the node.
        clusters: the last clusters of this view.
        cluster: the number of this node's own.
    """

    def __init__(self, view: RavnestView, registration: Registration, clusters: Clusters, cluster: int):
        self._view, self._clusters, self._cluster = view, clusters, cluster
        self._expected = {CLUSTERS: view.clusters_revision, registration.key: registration.revision}
        self._steps = asyncio.Queue[ClusterProgress]()
        self._last = ClusterProgress(clusters.number, 0, 0.0, [], 0.0, "")

    def report(self, report: StepReport) -> None:
        """Write a completed step, when it is its turn."""
        number, delays = self._clusters.step_of(self._cluster, report.step), list(report.staleness)
        self._last = ClusterProgress(self._clusters.number, number, report.loss, delays, report.step_s, "")
        self._steps.put_nowait(self._last)

    def end(self, digest: str) -> None:
        """Write that the last step is trained; `write_steps` returns afterwards."""
        self._steps.put_nowait(replace(self._last, digest=digest))

    async def write_steps(self) -> None:
        """Write the steps of the cluster, in order, up to the end. Raises NoLongerValid, as `write`."""
        digest = ""
        while not digest:
            progress = await self._steps.get()
            await self._write({f"{PROGRESS}{self._cluster}": progress})
            digest = progress.digest

    async def write(self, number: int) -> None:
        """See `RoundLog`. Raises NoLongerValid: this node has left, or newer clusters were formed."""
        await self._write({ROUND: RoundRecord(self._clusters.number, number)})

    async def stands(self, number: int) -> None:
        """See `RoundLog`."""
        await self._view.wait_for(lambda: self._view.rounds_of(self._clusters) >= number)

    async def _write(self, records: Mapping[str, Record]) -> None:
        try:
            put = {key: record.pack() for key, record in records.items()}
            await self._view.directory.transact(self._expected, put)
        except Conflict as error:
            raise NoLongerValid("this node has left its cluster") from error
