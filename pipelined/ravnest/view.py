"""Nodes, clusters, progress and rounds, as this process last read them from the directory."""

from collections import Counter
from collections.abc import Sequence

from pipelined.aio.clock import Clock
from pipelined.directory import Directory
from pipelined.membership.view import MembershipView, Single, Table
from pipelined.ravnest.records import (
    CLUSTERS,
    NODES,
    PROGRESS,
    ROUND,
    ClusterProgress,
    Clusters,
    NodeRecord,
    RoundRecord,
)
from pipelined.state.versions import SAVED, SavedStage, SavedStages, Version, whole_steps


class RavnestView(MembershipView):
    """The records of Ravnest.

    Attributes:
        nodes: by name.
        progress: by cluster, as text.
        saved: by name of a node, what it can read of what was saved.
    """

    def __init__(self, directory: Directory, clock: Clock):
        self.nodes, self.progress, self.saved = Table(NodeRecord), Table(ClusterProgress), Table(SavedStages)
        self._clusters, self._round = Single(Clusters), Single(RoundRecord)
        super().__init__(
            directory,
            clock,
            tables={
                NODES: self.nodes.apply,
                CLUSTERS: self._clusters.apply,
                SAVED: self.saved.apply,
                PROGRESS: self.progress.apply,
                ROUND: self._round.apply,
            },
            members={NodeRecord: self.nodes},
        )

    @property
    def clusters(self) -> Clusters | None:
        """The clusters that train, or trained last; None: there were none yet, or their record cannot be read."""
        return self._clusters.record

    @property
    def clusters_revision(self) -> int:
        """Of their key, for transactions; 0: no such key."""
        return self._clusters.revision

    @property
    def standing(self) -> Clusters | None:
        """The last clusters, if each trains or has trained its last step."""
        return self.clusters if self.clusters is not None and not self.missing(self.clusters) else None

    @property
    def free(self) -> list[NodeRecord]:
        """The nodes that wait for a cluster, in the order in which they joined."""
        found = [node for node in self.nodes.values() if self.clusters is None or self.clusters.place_of(node) is None]
        return sorted(found, key=lambda node: node.incarnation)

    def stands(self, clusters: Clusters) -> bool:
        """Whether these are the last clusters, and none of their nodes has left before its cluster was done."""
        return self.standing == clusters

    def digests(self, clusters: Clusters) -> dict[int, str]:
        """The digest of each of these clusters that has trained its last step, by number."""
        found = ((number, self.progress.get(f"{number}")) for number in range(len(clusters.rows)))
        return {n: each.digest for n, each in found if each and each.clusters == clusters.number and each.digest}

    def missing(self, clusters: Clusters) -> list[str]:
        """The nodes, in this incarnation, that left their cluster before it was done, in the order of the clusters."""
        done, here = self.digests(clusters), {(n.name, n.incarnation) for n in self.nodes.values()}
        rows = (row for number, row in enumerate(clusters.rows) if number not in done)
        return [place.name for row in rows for place in row if (place.name, place.incarnation) not in here]

    def begun_by(self, nodes: Sequence[NodeRecord]) -> tuple[Version, list[NodeRecord]]:
        """What clusters of these nodes begin with, and the nodes that can read it: all, if nothing is saved.

        It is the save of which most of them can read all stages, of several the latest.
        """
        read = {node.name: {each.version for each in whole_steps(self._saved(node.name))} for node in nodes}
        readers = Counter(version for versions in read.values() for version in versions)
        if not readers:
            return Version(0, ""), [*nodes]
        begun = max(readers, key=lambda version: (readers[version], version))
        return begun, [node for node in nodes if begun in read[node.name]]

    @property
    def last_saved(self) -> int:
        """The greatest number of clusters of which any node has a save; 0: of none."""
        lineages = (each.lineage.rpartition("-")[2] for name in self.saved for each in self._saved(name))
        return max((int(number) for number in lineages if number.isdecimal()), default=0)

    def _saved(self, name: str) -> list[SavedStage]:
        return self.saved[name].all() if name in self.saved else []

    def rounds_of(self, clusters: Clusters) -> int:
        """The rounds of these clusters that stand."""
        found = self._round.record
        return found.number if found is not None and found.clusters == clusters.number else 0
