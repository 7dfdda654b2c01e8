"""The records that Ravnest keeps in its directory.

subject           (the program's own)   what is trained
swarm             (text)                the unique name of the run; nodes save stages under it
nodes/NAME        NodeRecord            a node; expires with its lease
clusters          Clusters              which nodes form which clusters; `train` writes it
ending            ClustersEnding                the clusters that end for others to go on; `train` writes it
stopped/C         ClusterStop               what cluster C had done when it stopped for that
saved/NAME        SavedStages           what a node can read of what was saved; expires with the node's lease
progress/C        ClusterProgress       the last step that cluster C has completed
round             RoundRecord           the last round of averaging that stands
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pipelined.directory.record import Record
from pipelined.ravnest.planning.plan import PlannedStage, RavnestPlan
from pipelined.ravnest.planning.pool import PoolNode
from pipelined.state.versions import Version

NODES, CLUSTERS, PROGRESS, ROUND = "nodes/", "clusters", "progress/", "round"
ENDING, STOPPED = "ending", "stopped/"
UPDATES = "updates"
"""The field, in what a node saves, of the number of updates that a parameter has had; a swarm's peers save none."""
MAX_PLACES = 4096
MAX_ALIVE = 4096
MAX_STEP = 1 << 53


@dataclass(frozen=True, slots=True)
class NodeRecord(Record):
    """A node that waits for a cluster, or is in one.

    Args:
        address: of its endpoint.
        incarnation: number of the lease that this record is bound to.
        ram: bytes that it may use for the model.
        bandwidth: bytes a second of its line.
        flops: floating-point operations a second; 0: not known.
    """

    name: str
    address: str
    incarnation: int
    ram: int
    bandwidth: float
    flops: float

    def __post_init__(self) -> None:
        numbers = (self.ram, self.bandwidth, self.flops)
        if not all(math.isfinite(number) for number in numbers) or min(numbers) < 0 or 0 in numbers[:2]:
            raise ValueError(f"NodeRecord: no RAM, line or speed of a node (got: {numbers})")

    @property
    def pool_node(self) -> PoolNode:
        """The node as the plan takes it."""
        return PoolNode(self.name, self.ram, self.bandwidth, self.flops or None)


class StagePlace(NamedTuple):
    """One stage of one cluster: its node, its layers [first, end), and its most microbatches alive.

    The incarnation is the node's at that time: a node that has left and joined again is not in the cluster.
    """

    name: str
    address: str
    incarnation: int
    first: int
    end: int
    alive: int


class GoingOn(NamedTuple):
    """How clusters go on after others, with what their nodes have in memory.

    Args:
        clusters: the number of those before; 0: these begin anew, or with what was saved.
        rounds: how many rounds of those stand.
        late: how many clusters are new, the last ones: they begin with the average of the first round.
        again: steps before those that are next, which the clusters that are left have not trained: they come first.
        apart: of each cluster that goes on, the steps in its parameters that are in no average.
    """

    clusters: int = 0
    rounds: int = 0
    late: int = 0
    again: Sequence[int] = ()
    apart: Sequence[Sequence[int]] = ()


@dataclass(frozen=True, slots=True)
class Clusters(Record):
    """The clusters of one run.

    Args:
        number: greater than that of all clusters before; the names of their worlds contain it.
        rows: of each cluster its places, in the order of the stages.
        begun: what they began with: the steps of the training done before, and the lineage under which it was saved.
        going: how they go on after others; the lineage is "" then.
    """

    number: int
    rows: list[list[StagePlace]] = field(metadata={"kind": list})
    begun: Version = field(default=Version(0, ""), metadata={"kind": list})
    going: GoingOn = field(default=GoingOn(), metadata={"kind": list, "absent": list(GoingOn())})

    def __post_init__(self) -> None:
        if [type(each) for each in self.begun] != [int, str] or self.begun[0] < 0:
            raise ValueError(f"Clusters.begun: no step and lineage (got: {self.begun!r:.80})")
        object.__setattr__(self, "begun", Version(*self.begun))
        if not self.rows or sum(map(len, self.rows)) > MAX_PLACES:
            raise ValueError(f"Clusters.rows: none, or too many places (clusters: {len(self.rows)})")
        object.__setattr__(self, "going", _read_going(self.going, len(self.rows)))
        rows = [[_read_place(place) for place in row] for row in self.rows]
        for row in rows:
            ends = [0, *(place.end for place in row)]
            if not row or ends[-1] != rows[0][-1].end or any(p.first != e for p, e in zip(row, ends, strict=False)):
                raise ValueError(f"Clusters.rows: a cluster does not hold every layer once (got: {row!r:.200})")
        addresses = [place.address for row in rows for place in row]
        if len(set(addresses)) < len(addresses):
            raise ValueError(f"Clusters.rows: a node twice (addresses: {addresses!r:.200})")
        object.__setattr__(self, "rows", rows)

    @classmethod
    def of(cls, number: int, plan: RavnestPlan, nodes: Iterable[NodeRecord], begun: Version) -> "Clusters":
        """The clusters of a plan of these nodes."""
        return cls(number, cls.rows_of(plan, nodes), begun)

    @staticmethod
    def rows_of(plan: RavnestPlan, nodes: Iterable[NodeRecord]) -> list[list[StagePlace]]:
        """The rows of a plan of these nodes."""
        named = {node.name: node for node in nodes}

        def place(stage: PlannedStage) -> StagePlace:
            node = named[stage.node.name]
            return StagePlace(node.name, node.address, node.incarnation, stage.first, stage.end, stage.alive)

        return [[place(stage) for stage in cluster.stages] for cluster in plan.clusters]

    def step_of(self, cluster: int, step: int) -> int:
        """The step of the training that is this step of one of these clusters."""
        turn = cluster + step * len(self.rows)
        again = self.going.again
        return again[turn] if turn < len(again) else self.begun.step + turn

    @property
    def kept(self) -> int:
        """How many clusters, the first ones, are not late."""
        return len(self.rows) - self.going.late

    @property
    def opening(self) -> int:
        """How many rounds these clusters have before their first step: 1 if several go on, else 0."""
        return int(self.going.clusters > 0 and len(self.rows) > 1)

    def place_of(self, node: NodeRecord) -> tuple[int, int] | None:
        """The cluster and the stage of a node; None: it is in no cluster in this incarnation."""
        for cluster, row in enumerate(self.rows):
            for stage, place in enumerate(row):
                if place[:3] == (node.name, node.address, node.incarnation):
                    return cluster, stage
        return None


@dataclass(frozen=True, slots=True)
class ClusterProgress(Record):
    """The last step that a cluster has completed.

    Args:
        clusters: number of the clusters that it belongs to.
        step: the number of that step of the training, from 0.
        loss: mean over its microbatches.
        staleness: by stage, updates between the weights of a gradient and those it was applied to; the step's mean.
        seconds: from the end of the step before.
        digest: of all parameters after the last step and the last round; "": the cluster is not done.
    """

    clusters: int
    step: int
    loss: float
    staleness: list[float] = field(metadata={"kind": list})
    seconds: float
    digest: str

    def __post_init__(self) -> None:
        if not all(type(each) in (int, float) for each in self.staleness):
            raise ValueError(f"ClusterProgress.staleness: no numbers (got: {self.staleness!r:.80})")


@dataclass(frozen=True, slots=True)
class RoundRecord(Record):
    """The last round of averaging that stands: every node had the whole average of its layers before it was written.

    Args:
        clusters: number of the clusters that averaged.
        number: of the round, from 1.
    """

    clusters: int
    number: int


@dataclass(frozen=True, slots=True)
class ClustersEnding(Record):
    """The clusters of this number end: no further round of theirs stands, each stops, and others go on.

    Args:
        clusters: their number.
    """

    clusters: int


@dataclass(frozen=True, slots=True)
class ClusterStop(Record):
    """What a cluster had done when it stopped, so that others can go on.

    Args:
        clusters: number of the clusters that it belongs to.
        done: steps of the training done before the last round that stands, of one cluster alone before its end: all
            of them are in its parameters.
        apart: the steps that it trained since, and that are in no average.
    """

    clusters: int
    done: int
    apart: list[int] = field(metadata={"kind": list})

    def __post_init__(self) -> None:
        if not _are_steps(self.apart):
            raise ValueError(f"ClusterStop.apart: no steps (got: {self.apart!r:.80})")


def _are_steps(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(type(each) is int and 0 <= each < MAX_STEP for each in value)


def _read_going(value: object, rows: int) -> GoingOn:
    going = GoingOn(*value) if isinstance(value, (list, tuple)) and len(value) == len(GoingOn._fields) else None
    if (
        going is None
        or [type(each) for each in going[:3]] != 3 * [int]
        or min(going[:3]) < 0
        or going.late >= max(1, rows)
        or not _are_steps(going.again)
        or not isinstance(going.apart, (list, tuple))
        or not all(map(_are_steps, going.apart))
        or (len(going.apart) != rows - going.late if going.clusters else any(going))
    ):
        raise ValueError(f"Clusters.going: not how clusters go on (got: {value!r:.200})")
    return going._replace(again=[*going.again], apart=[[*each] for each in going.apart])


def _read_place(value: object) -> StagePlace:
    if not isinstance(value, (list, tuple)) or [type(each) for each in value] != [str, str, *4 * [int]]:
        raise ValueError(f"Clusters.rows: no place (got: {value!r:.80})")
    place = StagePlace(*value)
    if not 0 <= place.first < place.end or not 1 <= place.alive <= MAX_ALIVE:
        raise ValueError(f"Clusters.rows: layers or microbatches alive out of range (got: {place})")
    return place
