"""Nodes, clusters, progress and rounds, as this process last read them from the directory."""

from dataclasses import replace

from pipelined.aio.clock import Clock
from pipelined.directory import Directory, Entry
from pipelined.directory.membership.task_record import TASK
from pipelined.directory.membership.view import MembershipView, Single, Table
from pipelined.ravnest.planning.losses import LossCounts
from pipelined.ravnest.planning.pool import PoolNode
from pipelined.ravnest.records import (
    CLUSTERS,
    ENDING,
    LOSSES,
    NODES,
    PROGRESS,
    ROUND,
    STOPPED,
    WAITS,
    BackupPlace,
    ClusterProgress,
    Clusters,
    ClustersEnding,
    ClusterStop,
    Holder,
    NodeRecord,
    RoundRecord,
    WaitingNodes,
)
from pipelined.state.versions import SAVED, SavedStage, SavedStages, Version, whole_steps


class RavnestView(MembershipView):
    """The records of Ravnest.

    Attributes:
        nodes: by name.
        progress: by cluster, as text.
        stopped: by cluster, as text, what it had done when it stopped.
        saved: by name of a node, what it can read of what was saved.
        task: revision of the record of what is trained; 0: there is none.
    """

    def __init__(self, directory: Directory, clock: Clock):
        self.nodes, self.progress, self.saved = Table(NodeRecord), Table(ClusterProgress), Table(SavedStages)
        self._clusters, self._round, self._ending = Single(Clusters), Single(RoundRecord), Single(ClustersEnding)
        self.stopped, self._losses, self._waits = Table(ClusterStop), Single(LossCounts), Single(WaitingNodes)
        self.task = 0
        super().__init__(
            directory,
            clock,
            tables={
                TASK: self._apply_task,
                NODES: self.nodes.apply,
                CLUSTERS: self._clusters.apply,
                SAVED: self.saved.apply,
                PROGRESS: self.progress.apply,
                ROUND: self._round.apply,
                ENDING: self._ending.apply,
                STOPPED: self.stopped.apply,
                LOSSES: self._losses.apply,
                WAITS: self._waits.apply,
            },
            members={NodeRecord: self.nodes},
        )

    def _apply_task(self, name: str, entry: Entry | None) -> None:
        self.task = entry.revision if entry else 0

    async def until_other_task(self, revision: int) -> None:
        """Return when something else is trained than at this revision of the record."""
        await self.wait_for(lambda: self.revision > 0 and self.task != revision)

    @property
    def clusters(self) -> Clusters | None:
        """The clusters that train, or trained last; None: there were none yet, or their record cannot be read."""
        return self._clusters.record

    @property
    def clusters_revision(self) -> int:
        """Of their key, for transactions; 0: no such key."""
        return self._clusters.revision

    @property
    def next_number(self) -> int:
        """Greater than that of all clusters before, also where a resumed run's numbers are far above the revision."""
        return max(self.clusters.number if self.clusters else 0, self.clusters_revision, self.last_saved) + 1

    @property
    def current(self) -> Clusters | None:
        """The last clusters, if any of them is left, or all have trained their last step."""
        clusters = self.clusters
        return clusters if clusters is not None and (self.is_done(clusters) or self.intact(clusters)) else None

    @property
    def ending_revision(self) -> int:
        """Of the key of the clusters that end, for transactions; 0: no such key."""
        return self._ending.revision

    @property
    def losses(self) -> LossCounts:
        """How often each name has left its cluster; none, if the record cannot be read."""
        return self._losses.record or LossCounts()

    @property
    def waits(self) -> str:
        """What the nodes without a cluster wait for, in words; "": nothing, or the record cannot be read."""
        return self._waits.record.fact if self._waits.record else ""

    @property
    def waits_revision(self) -> int:
        """Of the key of these words, for transactions; 0: no such key."""
        return self._waits.revision

    def pool_node(self, node: NodeRecord) -> PoolNode:
        """A node as the plan takes it: its declared reliability over 1 + the times that it left a cluster."""
        return replace(node.pool_node, reliability=node.reliability / (1 + self.losses.of(node.name)))

    @property
    def losses_revision(self) -> int:
        """Of the key of these counts, for transactions; 0: no such key."""
        return self._losses.revision

    @property
    def free(self) -> list[NodeRecord]:
        """The nodes that wait for a cluster and know what is trained, in the order in which they joined."""
        known = [node for node in self.nodes.values() if node.task == self.task]
        found = [node for node in known if self.clusters is None or self.clusters.place_of(node) is None]
        return sorted(found, key=lambda node: node.incarnation)

    def ends(self, clusters: Clusters) -> bool:
        """Whether these clusters end, so that others go on."""
        return self._ending.record is not None and self._ending.record.clusters >= clusters.number

    def is_done(self, clusters: Clusters) -> bool:
        """Whether each of these clusters has trained its last step."""
        return len(self.digests(clusters)) == len(clusters.rows)

    def intact(self, clusters: Clusters) -> list[int]:
        """The numbers of these clusters of which every place is held.

        Empty where only late ones are, and no round is committed: these do not have an average to go on from.
        """
        whole = [
            n for n, row in enumerate(clusters.rows) if all(self.remaining_at(clusters, n, s) for s in range(len(row)))
        ]
        has_average = self.rounds_of(clusters) > 0 or any(number < clusters.established for number in whole)
        return whole if has_average else []

    def stops(self, clusters: Clusters) -> dict[int, ClusterStop]:
        """What each of these clusters that has stopped had done, by number."""
        found = ((number, self.stopped.get(f"{number}")) for number in range(len(clusters.rows)))
        return {number: each for number, each in found if each and each.clusters == clusters.number}

    def remaining_at(self, clusters: Clusters, cluster: int, stage: int) -> list[Holder]:
        """The holders of a place that have not left."""
        return [each for each in clusters.holders(cluster, stage) if self._listed(each)]

    def departed(self, clusters: Clusters) -> list[Holder]:
        """The holders of all places that have left."""
        return [each for each in clusters.all_holders if not self._listed(each)]

    def _listed(self, holder: Holder) -> bool:
        node = self.nodes.get(holder.name)
        return node is not None and node.incarnation == holder.incarnation

    def digests(self, clusters: Clusters) -> dict[int, str]:
        """The digest of each of these clusters that has trained its last step, by number."""
        found = ((number, self.progress.get(f"{number}")) for number in range(len(clusters.rows)))
        return {n: each.digest for n, each in found if each and each.clusters == clusters.number and each.digest}

    def missing(self, clusters: Clusters) -> list[str]:
        """The nodes that left before these clusters were done, and have no backup left, in their order."""
        if self.is_done(clusters):
            return []
        places = ((n, s) for n, row in enumerate(clusters.rows) for s in range(len(row)))
        return [clusters.rows[n][s].holder.name for n, s in places if not self.remaining_at(clusters, n, s)]

    @property
    def begun(self) -> Version:
        """What new clusters begin with: the latest step of which every stage is saved by some node that is here."""
        return max((each.version for each in whole_steps(self.all_saved)), default=Version(0, ""))

    @property
    def all_saved(self) -> list[SavedStage]:
        """What the nodes that are here can read."""
        return [each for name in self.nodes for each in self._saved(name)]

    def holders(self, version: Version) -> list[str]:
        """The nodes that offer stages of a version."""
        return [name for name in self.nodes if any(each.version == version for each in self._saved(name))]

    @property
    def last_saved(self) -> int:
        """The greatest number of clusters of which any node has a save; 0: of none."""
        lineages = (each.lineage.rpartition("-")[2] for name in self.saved for each in self._saved(name))
        return max((int(number) for number in lineages if number.isdecimal()), default=0)

    def _saved(self, name: str) -> list[SavedStage]:
        return self.saved[name].all() if name in self.saved else []

    @property
    def round_revision(self) -> int:
        """Of the key of the last round, for transactions; 0: no such key."""
        return self._round.revision

    def settled(self, clusters: Clusters) -> Clusters:
        """These clusters with the holders that have not left; a place that none holds keeps its first one."""
        rows, backups = [[*row] for row in clusters.rows], []
        for number, row in enumerate(rows):
            for stage, place in enumerate(row):
                first, *others = self.remaining_at(clusters, number, stage) or clusters.holders(number, stage)[:1]
                row[stage] = place._replace(holder=first)
                backups += [BackupPlace(number, stage, other) for other in others]
        return replace(clusters, rows=rows, backups=backups)

    def rounds_of(self, clusters: Clusters) -> int:
        """The committed rounds of these clusters."""
        return self.round_of(clusters).number

    def round_of(self, clusters: Clusters) -> RoundRecord:
        """The record of the rounds of these clusters."""
        found = self._round.record
        return found if found is not None and found.clusters == clusters.number else RoundRecord(clusters.number, 0)

    def refused(self, clusters: Clusters) -> dict[int, int]:
        """By each refused round of these clusters the cluster that sent what was refused."""
        return {number: cluster for number, cluster in self.round_of(clusters).refused}
