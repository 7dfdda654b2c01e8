"""Nodes, the generation, progress and rounds, as this process last read them from the directory."""

from dataclasses import replace
from typing import Any

from pipelined.aio.clock import Clock
from pipelined.membership.directory import Directory, Entry
from pipelined.membership.record import Record
from pipelined.membership.task_record import TASK
from pipelined.membership.view import MembershipView, Single, Table
from pipelined.ravnest.cluster_place import ClusterPlace
from pipelined.ravnest.planning.pool import PoolNode
from pipelined.ravnest.records.generation import ENDING, GENERATION, BackupPlace, Generation, GenerationEnding
from pipelined.ravnest.records.nodes import DEPARTURES, NODES, WAITS, DepartureCounts, NodeRecord, WaitingNodes
from pipelined.ravnest.records.places import Holder
from pipelined.ravnest.records.progress import PROGRESS, ROUND, STOPPED, ClusterProgress, ClusterStop, RoundRecord
from pipelined.state.stages.versions import SAVED, SavedStage, SavedStages, Version, whole_steps


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
        self.nodes = Table(NodeRecord)
        self.saved = Table(SavedStages)
        self.progress = Table(ClusterProgress)
        self.stopped = Table(ClusterStop)
        self._generation = Single(Generation)
        self._round = Single(RoundRecord)
        self._ending = Single(GenerationEnding)
        self._departures = Single(DepartureCounts)
        self._waits = Single(WaitingNodes)
        self.task = 0
        self._singles: dict[str, Single[Any]] = {
            GENERATION: self._generation,
            ROUND: self._round,
            ENDING: self._ending,
            DEPARTURES: self._departures,
            WAITS: self._waits,
        }
        tables: dict[str, Table[Any]] = {
            NODES: self.nodes,
            SAVED: self.saved,
            PROGRESS: self.progress,
            STOPPED: self.stopped,
        }
        applied = {key: records.apply for key, records in (tables | self._singles).items()}
        super().__init__(directory, clock, tables={TASK: self._apply_task, **applied}, members={NodeRecord: self.nodes})

    def _apply_task(self, name: str, entry: Entry | None) -> None:
        self.task = entry.revision if entry else 0

    async def wait_for_changed_task(self, revision: int) -> None:
        """Return when something else is trained than at this revision of the record."""
        await self.wait_for(lambda: self.revision > 0 and self.task != revision)

    def revision_of(self, key: str) -> int:
        """The revision of a key that has one record, for transactions; 0: it has none."""
        return self._singles[key].revision

    async def replace_record(self, key: str, record: Record) -> None:
        """Write the one record of a key; returns when this view has it, or what another process wrote meanwhile."""
        revision = self.revision_of(key)
        await self.write_unless_changed({key: revision}, {key: record.pack()})
        await self.wait_for(lambda: self.revision_of(key) != revision)

    @property
    def generation(self) -> Generation | None:
        """The one that trains, or trained last; None: there was none yet, or its record cannot be read."""
        return self._generation.record

    @property
    def next_number(self) -> int:
        """Greater than that of each generation before, also where a resumed run's are far above the revision."""
        last_number = self.generation.number if self.generation else 0
        return max(last_number, self.revision_of(GENERATION), self.last_saved_generation) + 1

    @property
    def current_generation(self) -> Generation | None:
        """The last generation, if any cluster of it is left, or all have trained their last step."""
        generation = self.generation
        return generation if generation is not None and (self.is_done(generation) or self.intact(generation)) else None

    @property
    def departures(self) -> DepartureCounts:
        """How often each name has left its cluster; none, if the record cannot be read."""
        return self._departures.record or DepartureCounts()

    @property
    def wait_text(self) -> str:
        """What the nodes without a cluster wait for, in words; "": nothing, or the record cannot be read."""
        return self._waits.record.fact if self._waits.record else ""

    def pool_node(self, node: NodeRecord) -> PoolNode:
        """A node as the plan takes it: its declared reliability over 1 + the times that it left a cluster."""
        return replace(node.pool_node, reliability=node.reliability / (1 + self.departures.count(node.name)))

    @property
    def free_nodes(self) -> list[NodeRecord]:
        """The nodes that wait for a cluster and know what is trained, in the order in which they joined."""
        informed_nodes = [node for node in self.nodes.values() if node.task == self.task]
        waiting_nodes = [
            node for node in informed_nodes if self.generation is None or self.generation.place_of(node) is None
        ]
        return sorted(waiting_nodes, key=lambda node: node.incarnation)

    def ends(self, generation: Generation) -> bool:
        """Whether this generation ends, so that another follows."""
        return self._ending.record is not None and self._ending.record.generation >= generation.number

    def is_done(self, generation: Generation) -> bool:
        """Whether each cluster has trained its last step."""
        return len(self.digests(generation)) == len(generation.clusters)

    def intact(self, generation: Generation) -> list[int]:
        """The numbers of the clusters of which every place is held.

        Empty where only late ones are, and no round is committed: these do not have an average to go on from.
        """
        lost_clusters = {
            place.cluster for place, _ in generation.all_places if not self.remaining_at(generation, place)
        }
        held_clusters = [cluster for cluster in range(len(generation.clusters)) if cluster not in lost_clusters]
        has_average = self.rounds_of(generation) > 0 or any(
            not generation.is_late(cluster) for cluster in held_clusters
        )
        return held_clusters if has_average else []

    def stops(self, generation: Generation) -> dict[int, ClusterStop]:
        """What each cluster that has stopped had done, by cluster."""
        stops = ((cluster, self.stopped.get(f"{cluster}")) for cluster in range(len(generation.clusters)))
        return {cluster: stop for cluster, stop in stops if stop and stop.generation == generation.number}

    def remaining_at(self, generation: Generation, place: ClusterPlace) -> list[Holder]:
        """The holders of a place that have not left."""
        return [holder for holder in generation.holders(place) if self._is_listed(holder)]

    def departed(self, generation: Generation) -> list[Holder]:
        """The holders of all places that have left."""
        return [holder for holder in generation.all_holders if not self._is_listed(holder)]

    def _is_listed(self, holder: Holder) -> bool:
        node = self.nodes.get(holder.name)
        return node is not None and node.incarnation == holder.incarnation

    def digests(self, generation: Generation) -> dict[int, str]:
        """The digest of each cluster that has trained its last step, by cluster."""
        records = ((cluster, self.progress.get(f"{cluster}")) for cluster in range(len(generation.clusters)))
        return {
            cluster: record.digest
            for cluster, record in records
            if record and record.generation == generation.number and record.digest
        }

    def missing(self, generation: Generation) -> list[str]:
        """The nodes that left before this generation was done, and have no backup left, in their order."""
        if self.is_done(generation):
            return []
        return [
            stage_place.holder.name
            for place, stage_place in generation.all_places
            if not self.remaining_at(generation, place)
        ]

    @property
    def saved_version(self) -> Version:
        """What a new generation begins with: the latest step of which each stage is saved by some node that is here."""
        return max((saved.version for saved in whole_steps(self.all_saved)), default=Version(0, ""))

    @property
    def all_saved(self) -> list[SavedStage]:
        """What the nodes that are here can read."""
        return [saved for name in self.nodes for saved in self._saved(name)]

    def holders(self, version: Version) -> list[str]:
        """The nodes that offer stages of a version."""
        return [name for name in self.nodes if any(stage.version == version for stage in self._saved(name))]

    @property
    def last_saved_generation(self) -> int:
        """The greatest number of a generation of which any node has a save; 0: of none."""
        lineages = (saved.lineage.rpartition("-")[2] for name in self.saved for saved in self._saved(name))
        return max((int(number) for number in lineages if number.isdecimal()), default=0)

    def _saved(self, name: str) -> list[SavedStage]:
        return self.saved[name].all() if name in self.saved else []

    def with_remaining(self, generation: Generation) -> Generation:
        """This generation with the holders that have not left; a place that none holds keeps its first one."""
        clusters = [[*stages] for stages in generation.clusters]
        backups = []
        for place, stage_place in generation.all_places:
            holder, *backup_holders = self.remaining_at(generation, place) or [stage_place.holder]
            clusters[place.cluster][place.stage] = stage_place._replace(holder=holder)
            backups += [BackupPlace(*place, backup_holder) for backup_holder in backup_holders]
        return replace(generation, clusters=clusters, backups=backups)

    def rounds_of(self, generation: Generation) -> int:
        """The committed rounds of this generation."""
        return self.round_of(generation).number

    def round_of(self, generation: Generation) -> RoundRecord:
        """The record of the rounds of this generation."""
        record = self._round.record
        return record if record and record.generation == generation.number else RoundRecord(generation.number, 0)

    def refused(self, generation: Generation) -> dict[int, int]:
        """The cluster that sent what was refused, by each refused round of this generation."""
        return {round_: cluster for round_, cluster in self.round_of(generation).refused}
