"""The status of Ravnest: its clusters, how far they are, and the nodes that wait."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipelined.aio.clock import RealClock
from pipelined.directory import Directory, View
from pipelined.membership.polls import poll_status
from pipelined.ravnest.records import ClusterProgress, Clusters
from pipelined.ravnest.view import RavnestView


@dataclass(frozen=True)
class RavnestStatus:
    """The status of Ravnest.

    Args:
        clusters: None: none were formed yet.
        progress: by cluster, of those that have completed a step.
        round: committed rounds of averaging.
        waiting: nodes without a cluster, in the order in which they joined.
        missing: nodes that left their cluster before it was done.
        unreadable: why a record of the directory cannot be read, by key.
        age_s: seconds since the directory replied.
    """

    clusters: Clusters | None
    progress: Mapping[int, ClusterProgress]
    round: int
    waiting: Sequence[str]
    missing: Sequence[str]
    unreadable: Mapping[str, str]
    age_s: float = 0.0

    @classmethod
    def of(cls, view: RavnestView) -> "RavnestStatus":
        """What a view shows."""
        clusters, waiting = view.clusters, [node.name for node in view.free]
        if clusters is None:
            return cls(None, {}, 0, waiting, [], view.unreadable)
        found = ((number, view.progress.get(f"{number}")) for number in range(len(clusters.rows)))
        progress = {number: each for number, each in found if each and each.clusters == clusters.number}
        missing = view.missing(clusters)
        return cls(view.settled(clusters), progress, view.rounds_of(clusters), waiting, missing, view.unreadable)

    @property
    def last(self) -> ClusterProgress | None:
        """The progress of the cluster that is furthest; None: no step is completed."""
        return max(self.progress.values(), key=lambda each: each.step, default=None)

    def plain(self) -> dict[str, Any]:
        """The status as JSON shows it; docs/ravnest.md has the fields."""
        last = self.last
        rows = enumerate(self.clusters.rows if self.clusters else [])
        return {
            "step": last.step if last else None,
            "loss": last.loss if last else None,
            "round": self.round,
            "waiting": list(self.waiting),
            "missing": list(self.missing),
            "clusters": [self._cluster(number) for number, _ in rows],
            "unreadable": dict(self.unreadable),
            "past_s": self.age_s,
        }

    def _cluster(self, number: int) -> dict[str, Any]:
        assert self.clusters is not None
        row, progress = self.clusters.rows[number], self.progress.get(number)
        names = {each.stage: each.holder.name for each in self.clusters.backups if each.cluster == number}
        backups = [names.get(stage) for stage in range(len(row))]
        delays = progress.staleness if progress and len(progress.staleness) == len(row) else [None] * len(row)
        return {
            "step": progress.step if progress else None,
            "loss": progress.loss if progress else None,
            "step_s": progress.seconds if progress else None,
            "done": bool(progress and progress.digest),
            "places": [
                {"node": p.name, "backup": backup, "layers": [p.first, p.end], "alive": p.alive, "staleness": delay}
                for p, backup, delay in zip(row, backups, delays, strict=True)
            ],
        }


async def statuses(directory: Directory, every_s: float) -> AsyncIterator[RavnestStatus]:
    """The status, again and again; see `poll_status`."""
    view = RavnestView(directory, RealClock())

    async def status(entries: View) -> RavnestStatus:
        view.load(entries)
        return RavnestStatus.of(view)

    async for last, age_s in poll_status(directory, status, every_s):
        yield replace(last, age_s=age_s)
