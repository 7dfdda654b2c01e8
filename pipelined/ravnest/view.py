"""Nodes, clusters, progress and rounds, as this process last read them from the directory."""

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


class RavnestView(MembershipView):
    """The records of Ravnest.

    Attributes:
        nodes: by name.
        progress: by cluster, as text.
    """

    def __init__(self, directory: Directory, clock: Clock):
        self.nodes, self.progress = Table(NodeRecord), Table(ClusterProgress)
        self._clusters, self._round = Single(Clusters), Single(RoundRecord)
        super().__init__(
            directory,
            clock,
            tables={
                NODES: self.nodes.apply,
                CLUSTERS: self._clusters.apply,
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

    def rounds_of(self, clusters: Clusters) -> int:
        """The rounds of these clusters that stand."""
        found = self._round.record
        return found.number if found is not None and found.clusters == clusters.number else 0

    @property
    def round_revision(self) -> int:
        """Of its key, for transactions; 0: no such key."""
        return self._round.revision

    def missing(self, clusters: Clusters) -> list[str]:
        """The nodes of these clusters that the directory does not list any more, in their order."""
        listed = {node.address for node in self.nodes.values()}
        return [place.name for row in clusters.rows for place in row if place.address not in listed]
