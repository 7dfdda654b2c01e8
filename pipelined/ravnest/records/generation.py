"""The generation: the clusters that train together, as Ravnest's directory has them.

subject           (the program's own)   what is trained
swarm             (text)                the unique name of the run; nodes save stages under it
clusters          Generation            which nodes form which clusters; `train` writes it
ending            GenerationEnding      the generation that ends for another to follow; `train` writes it
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pipelined.membership.record import Record
from pipelined.ravnest.cluster_place import ClusterPlace
from pipelined.ravnest.planning.plan import RavnestPlan
from pipelined.ravnest.records.nodes import NodeRecord
from pipelined.ravnest.records.places import BackupPlace, Holder, StagePlace, are_steps, read_backup, read_place
from pipelined.state.stages.versions import Version

GENERATION, ENDING = "clusters", "ending"
MAX_PLACES = 4096
AWAITED_STATE = "the average and the moments of cluster 0"
"""What a late cluster waits for until the first round of its generation is committed."""


class Continuation(NamedTuple):
    """How a generation goes on after another, with what their nodes have in memory.

    Args:
        previous: the number of the one before; 0: this one begins anew, or with what was saved.
        rounds: how many rounds of that one are committed.
        late_clusters: how many are new, the last ones: they begin with the average of the first round.
        steps_to_repeat: steps before the next ones, which no remaining cluster has trained: they come first.
        steps_since_round: of each cluster that goes on, the steps in its parameters that are in no average.
    """

    previous: int = 0
    rounds: int = 0
    late_clusters: int = 0
    steps_to_repeat: Sequence[int] = ()
    steps_since_round: Sequence[Sequence[int]] = ()


ANEW = Continuation()


@dataclass(frozen=True, slots=True)
class Generation(Record):
    """All clusters that train together, until they end and another generation follows.

    Args:
        number: greater than that of every generation before; the names of its worlds contain it.
        clusters: of each cluster its places, in the order of the stages.
        start: what it began with: the steps of the training done before, and the lineage under which it was saved.
        continuation: how it goes on after another; the lineage is "" then.
        backups: at most one of each place.
    """

    number: int
    clusters: list[list[StagePlace]] = field(metadata={"kind": list, "stored": "rows"})
    start: Version = field(default=Version(0, ""), metadata={"kind": list, "stored": "begun"})
    continuation: Continuation = field(default=ANEW, metadata={"kind": list, "stored": "going", "absent": list(ANEW)})
    backups: list[BackupPlace] = field(default_factory=list, metadata={"kind": list, "absent": []})

    def __post_init__(self) -> None:
        if [type(entry) for entry in self.start] != [int, str] or self.start[0] < 0:
            raise ValueError(f"Generation.begun: no step and lineage (got: {self.start!r:.80})")
        object.__setattr__(self, "start", Version(*self.start))
        if not self.clusters or sum(map(len, self.clusters)) > MAX_PLACES:
            raise ValueError(f"Generation.rows: none, or too many places (clusters: {len(self.clusters)})")
        object.__setattr__(self, "continuation", read_continuation(self.continuation, len(self.clusters)))
        clusters = [[read_place(place) for place in stages] for stages in self.clusters]
        for stages in clusters:
            ends = [0, *(place.end for place in stages)]
            if not stages or ends[-1] != clusters[0][-1].end or ends[:-1] != [place.first for place in stages]:
                raise ValueError(f"Generation.rows: a cluster does not hold every layer once (got: {stages!r:.200})")
        backups = [read_backup(backup, clusters) for backup in self.backups]
        if len({backup.place for backup in backups}) < len(backups):
            raise ValueError(f"Generation.backups: two of one place (got: {backups!r:.200})")
        object.__setattr__(self, "backups", backups)
        object.__setattr__(self, "clusters", clusters)
        addresses = [holder.address for holder in self.all_holders]
        if len(set(addresses)) < len(addresses):
            raise ValueError(f"Generation.rows: a node twice (addresses: {addresses!r:.200})")

    @classmethod
    def of(cls, number: int, plan: RavnestPlan, nodes: Sequence[NodeRecord], start: Version) -> "Generation":
        """The generation of a plan of these nodes."""
        holders = {node.name: node.holder for node in nodes}
        backups = [
            BackupPlace(cluster, stage, holders[planned_stage.backup.name])
            for cluster, planned_cluster in enumerate(plan.clusters)
            for stage, planned_stage in enumerate(planned_cluster.stages)
            if planned_stage.backup is not None
        ]
        return cls(number, cls.clusters_of(plan, nodes), start, backups=backups)

    @staticmethod
    def clusters_of(plan: RavnestPlan, nodes: Iterable[NodeRecord]) -> list[list[StagePlace]]:
        """The clusters of a plan of these nodes."""
        holders = {node.name: node.holder for node in nodes}
        return [
            [StagePlace(holders[stage.node.name], stage.first, stage.end, stage.alive) for stage in cluster.stages]
            for cluster in plan.clusters
        ]

    def stored(self) -> dict[str, Any]:
        """See `Record.stored`; each place is one list, as earlier releases wrote it."""
        return {**Record.stored(self), "rows": [[place.stored for place in stages] for stages in self.clusters]}

    def step_of(self, cluster: int, step: int) -> int:
        """The step of the training that is this step of one cluster."""
        turn = cluster + step * len(self.clusters)
        repeated = self.continuation.steps_to_repeat
        return repeated[turn] if turn < len(repeated) else self.start.step + turn

    def own_step(self, cluster: int, step: int) -> int | None:
        """The inverse of `step_of`: a step of the training by a cluster's count; None: it is not this cluster's."""
        repeated = self.continuation.steps_to_repeat
        turn = repeated.index(step) if step in repeated else step - self.start.step
        own_step, dealt_to = divmod(turn, len(self.clusters))
        return own_step if turn >= 0 and dealt_to == cluster and self.step_of(cluster, own_step) == step else None

    @property
    def established_clusters(self) -> int:
        """How many clusters are not late: the first ones."""
        return len(self.clusters) - self.continuation.late_clusters

    def is_late(self, cluster: int) -> bool:
        """Whether a cluster begins with the average of the first round."""
        return cluster >= self.established_clusters

    @property
    def opening_rounds(self) -> int:
        """How many rounds this generation has before its first step: 1 if several clusters go on, else 0."""
        return int(self.continuation.previous > 0 and len(self.clusters) > 1)

    @property
    def all_places(self) -> list[tuple[ClusterPlace, StagePlace]]:
        """Each place and what is there, in the order of the ranks among all clusters."""
        return [
            (ClusterPlace(cluster, stage), stage_place)
            for cluster, stages in enumerate(self.clusters)
            for stage, stage_place in enumerate(stages)
        ]

    def place_of(self, node: NodeRecord | Holder) -> ClusterPlace | None:
        """The place that a node holds, also as a backup; None: it is in no cluster in this incarnation."""
        holder = node if isinstance(node, Holder) else node.holder
        return next((place for place, _ in self.all_places if holder in self.holders(place)), None)

    def stage_place(self, place: ClusterPlace) -> StagePlace:
        """What a place holds: its node, its layers and its microbatches alive."""
        return self.clusters[place.cluster][place.stage]

    def holders(self, place: ClusterPlace) -> list[Holder]:
        """The node of a place, and its backup if it has one."""
        backup = self.backup_at(place)
        return [self.stage_place(place).holder, *([backup.holder] if backup else [])]

    @property
    def all_holders(self) -> list[Holder]:
        """The nodes of all places, and then the backups."""
        return [
            *(stage_place.holder for _, stage_place in self.all_places),
            *(backup.holder for backup in self.backups),
        ]

    def backup_at(self, place: ClusterPlace) -> BackupPlace | None:
        """The backup of a place; None: it has none."""
        return next((backup for backup in self.backups if backup.place == place), None)

    def backup_addresses(self, cluster: int) -> list[str]:
        """By stage, the address of the backup in one cluster; "" where there is none."""
        addresses = {backup.stage: backup.holder.address for backup in self.backups if backup.cluster == cluster}
        return [addresses.get(stage, "") for stage in range(len(self.clusters[cluster]))]

    def place_before(self, previous: "Generation", cluster: int) -> int | None:
        """The number that a cluster of the generation before has in this one; None: it does not go on."""
        stages_before = range(len(previous.clusters[cluster]))
        holders_before = [previous.holders(ClusterPlace(cluster, stage)) for stage in stages_before]
        for number, stages in enumerate(self.clusters[: self.established_clusters]):
            if len(stages) == len(holders_before) and all(
                stage_place.holder in holders for stage_place, holders in zip(stages, holders_before, strict=True)
            ):
                return number
        return None


@dataclass(frozen=True, slots=True)
class GenerationEnding(Record):
    """The generation with this number ends: no further round of it is committed, and each of its clusters stops."""

    generation: int = field(metadata={"stored": "clusters"})


def read_continuation(value: object, clusters: int) -> Continuation:
    """Parse a `Continuation`. Raises ValueError: a field has the wrong type or range."""
    if not isinstance(value, (list, tuple)) or len(value) != len(ANEW):
        raise ValueError(f"Generation.going: not a list of {len(ANEW)} fields (got: {value!r:.200})")
    continuation = Continuation(*value)
    if wrong := _wrong_field(continuation, clusters):
        fact = f"got: {getattr(continuation, wrong)!r:.80}, clusters: {clusters}"
        raise ValueError(f"Generation.going: {wrong} has the wrong type or range ({fact})")
    steps_since_round = [[*steps] for steps in continuation.steps_since_round]
    return continuation._replace(steps_to_repeat=[*continuation.steps_to_repeat], steps_since_round=steps_since_round)


def _wrong_field(continuation: Continuation, clusters: int) -> str:
    """The first field with the wrong type or range; "": all are right."""
    fields = continuation._asdict()
    numbers = ("previous", "rounds", "late_clusters")
    if wrong := next((name for name in numbers if type(fields[name]) is not int or fields[name] < 0), ""):
        return wrong
    if continuation.late_clusters >= clusters:
        return "late_clusters"
    if not are_steps(continuation.steps_to_repeat):
        return "steps_to_repeat"
    if not isinstance(continuation.steps_since_round, (list, tuple)) or not all(
        map(are_steps, continuation.steps_since_round)
    ):
        return "steps_since_round"
    if not continuation.previous:
        return next((name for name, entry in fields.items() if entry), "")
    return "steps_since_round" if len(continuation.steps_since_round) != clusters - continuation.late_clusters else ""
