"""The records that Ravnest keeps in its directory.

subject           (the program's own)   what is trained
swarm             (text)                the unique name of the run; nodes save stages under it
nodes/NAME        NodeRecord            a node; expires with its lease
clusters          Generation            which nodes form which clusters; `train` writes it
ending            GenerationEnding      the generation that ends for another to follow; `train` writes it
stopped/C         ClusterStop           what cluster C had done when it stopped for that
saved/NAME        SavedStages           what a node can read of what was saved; expires with the node's lease
progress/C        ClusterProgress       the last step that cluster C has completed
round             RoundRecord           the last committed round of averaging, and the refused ones
losses            LossCounts            how often each name has left its cluster; `train` writes it
waits             WaitingNodes          what the nodes without a cluster wait for; `train` writes it
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pipelined.directory.record import Record
from pipelined.ravnest.planning.places import (
    ANEW,
    BackupPlace,
    Continuation,
    Holder,
    StagePlace,
    are_steps,
    read_backup,
    read_continuation,
    read_place,
)
from pipelined.ravnest.planning.plan import RavnestPlan
from pipelined.ravnest.planning.pool import PoolNode
from pipelined.state.versions import Version

NODES, GENERATION, PROGRESS, ROUND = "nodes/", "clusters", "progress/", "round"
ENDING, STOPPED, LOSSES, WAITS = "ending", "stopped/", "losses", "waits"
UPDATES = "updates"
"""The field, in what a node saves, of the number of updates that a parameter has had; a swarm's peers save none."""
MAX_PLACES = 4096
MAX_DELAY_S = 60.0
"""Of a line: longer than any connection waits for a reply."""


@dataclass(frozen=True, slots=True)
class NodeRecord(Record):
    """A node that waits for a cluster, or is in one.

    Args:
        address: of its endpoint.
        incarnation: number of the lease that this record is bound to.
        ram: bytes that it may use for the model.
        bandwidth: bytes a second of its line.
        flops: floating-point operations a second; 0: not known.
        saves: whether it saves its stage.
        delay: seconds that a byte is under way on its line, one way.
        reliability: from 0 to 1, as the node was told; 1 where nothing is known.
        task: revision of `subject` as the node has read it; 0: it has read none.
    """

    name: str
    address: str
    incarnation: int
    ram: int
    bandwidth: float
    flops: float
    saves: bool = field(default=False, metadata={"absent": False})
    delay: float = field(default=0.0, metadata={"absent": 0.0})
    reliability: float = field(default=1.0, metadata={"absent": 1.0})
    task: int = field(default=0, metadata={"absent": 0})

    def __post_init__(self) -> None:
        numbers = (self.ram, self.bandwidth, self.flops, self.delay, self.reliability)
        if not all(math.isfinite(number) for number in numbers) or min(numbers) < 0 or 0 in numbers[:2]:
            raise ValueError(f"NodeRecord: no RAM, line or speed of a node (got: {numbers})")
        if self.delay > MAX_DELAY_S or self.reliability > 1:
            raise ValueError(f"NodeRecord: no delay or reliability (got: {self.delay:g} s, {self.reliability:g})")

    @property
    def pool_node(self) -> PoolNode:
        """The node as the plan takes it."""
        return PoolNode(
            self.name, self.ram, self.bandwidth, self.flops or None, reliability=self.reliability, delay=self.delay
        )


@dataclass(frozen=True, slots=True)
class Generation(Record):
    """All clusters that train together, until they end and another generation follows.

    Args:
        number: greater than that of every generation before; the names of its worlds contain it.
        rows: of each cluster its places, in the order of the stages.
        begun: what it began with: the steps of the training done before, and the lineage under which it was saved.
        continuation: how it goes on after another; the lineage is "" then.
        backups: at most one of each place.
    """

    number: int
    rows: list[list[StagePlace]] = field(metadata={"kind": list})
    begun: Version = field(default=Version(0, ""), metadata={"kind": list})
    continuation: Continuation = field(default=ANEW, metadata={"kind": list, "stored": "going", "absent": list(ANEW)})
    backups: list[BackupPlace] = field(default_factory=list, metadata={"kind": list, "absent": []})

    def __post_init__(self) -> None:
        if [type(each) for each in self.begun] != [int, str] or self.begun[0] < 0:
            raise ValueError(f"Generation.begun: no step and lineage (got: {self.begun!r:.80})")
        object.__setattr__(self, "begun", Version(*self.begun))
        if not self.rows or sum(map(len, self.rows)) > MAX_PLACES:
            raise ValueError(f"Generation.rows: none, or too many places (clusters: {len(self.rows)})")
        object.__setattr__(self, "continuation", read_continuation(self.continuation, len(self.rows)))
        rows = [[read_place(place) for place in row] for row in self.rows]
        for row in rows:
            ends = [0, *(place.end for place in row)]
            if not row or ends[-1] != rows[0][-1].end or any(p.first != e for p, e in zip(row, ends, strict=False)):
                raise ValueError(f"Generation.rows: a cluster does not hold every layer once (got: {row!r:.200})")
        backups = [read_backup(each, rows) for each in self.backups]
        if len({each[:2] for each in backups}) < len(backups):
            raise ValueError(f"Generation.backups: two of one place (got: {backups!r:.200})")
        object.__setattr__(self, "backups", backups)
        addresses = [place.holder.address for row in rows for place in row] + [each.holder.address for each in backups]
        if len(set(addresses)) < len(addresses):
            raise ValueError(f"Generation.rows: a node twice (addresses: {addresses!r:.200})")
        object.__setattr__(self, "rows", rows)

    @classmethod
    def of(cls, number: int, plan: RavnestPlan, nodes: Sequence[NodeRecord], begun: Version) -> "Generation":
        """The generation of a plan of these nodes."""
        named = {node.name: Holder(node.name, node.address, node.incarnation) for node in nodes}
        backups = [
            BackupPlace(cluster, stage, named[planned.backup.name])
            for cluster, each in enumerate(plan.clusters)
            for stage, planned in enumerate(each.stages)
            if planned.backup is not None
        ]
        return cls(number, cls.rows_of(plan, nodes), begun, backups=backups)

    @staticmethod
    def rows_of(plan: RavnestPlan, nodes: Iterable[NodeRecord]) -> list[list[StagePlace]]:
        """The rows of a plan of these nodes."""
        named = {node.name: Holder(node.name, node.address, node.incarnation) for node in nodes}
        return [
            [StagePlace(named[each.node.name], each.first, each.end, each.alive) for each in cluster.stages]
            for cluster in plan.clusters
        ]

    def stored(self) -> dict[str, Any]:
        """See `Record.stored`; each place is one list, as earlier releases wrote it."""
        return {**Record.stored(self), "rows": [[place.stored for place in row] for row in self.rows]}

    def step_of(self, cluster: int, step: int) -> int:
        """The step of the training that is this step of one cluster."""
        turn = cluster + step * len(self.rows)
        repeated = self.continuation.steps_to_repeat
        return repeated[turn] if turn < len(repeated) else self.begun.step + turn

    def own_step(self, cluster: int, step: int) -> int | None:
        """The inverse of `step_of`: a step of the training by a cluster's count; None: it is not this cluster's."""
        repeated = self.continuation.steps_to_repeat
        turn = repeated.index(step) if step in repeated else step - self.begun.step
        own, dealt_to = divmod(turn, len(self.rows))
        return own if turn >= 0 and dealt_to == cluster and self.step_of(cluster, own) == step else None

    @property
    def established(self) -> int:
        """How many clusters, the first ones, are not late."""
        return len(self.rows) - self.continuation.late

    @property
    def opening(self) -> int:
        """How many rounds this generation has before its first step: 1 if several clusters go on, else 0."""
        return int(self.continuation.previous > 0 and len(self.rows) > 1)

    def place_of(self, node: NodeRecord | Holder) -> tuple[int, int] | None:
        """The cluster and the stage of a node, or of its backup; None: it is in no cluster in this incarnation."""
        for cluster, row in enumerate(self.rows):
            for stage in range(len(row)):
                if (node.name, node.address, node.incarnation) in self.holders(cluster, stage):
                    return cluster, stage
        return None

    def holders(self, cluster: int, stage: int) -> list[Holder]:
        """The node of a place, and its backup if it has one."""
        backups = (each.holder for each in self.backups if each[:2] == (cluster, stage))
        return [self.rows[cluster][stage].holder, *backups]

    @property
    def all_holders(self) -> list[Holder]:
        """The nodes of all places, and then the backups."""
        return [*(place.holder for row in self.rows for place in row), *(each.holder for each in self.backups)]

    def has_backup(self, cluster: int, stage: int) -> bool:
        """Whether a place has a backup."""
        return any(each[:2] == (cluster, stage) for each in self.backups)

    def backup_addresses(self, cluster: int) -> list[str]:
        """By stage, the address of the backup in one cluster; "" where there is none."""
        found = {each.stage: each.holder.address for each in self.backups if each.cluster == cluster}
        return [found.get(stage, "") for stage in range(len(self.rows[cluster]))]

    def place_before(self, before: "Generation", number: int) -> int | None:
        """The number that a cluster has here of those before; None: it is not among those that go on."""
        old = before.rows[number]
        for here, row in enumerate(self.rows[: self.established]):
            if len(row) == len(old) and all(p.holder in before.holders(number, s) for s, p in enumerate(row)):
                return here
        return None


@dataclass(frozen=True, slots=True)
class ClusterProgress(Record):
    """The last step that a cluster has completed.

    Args:
        generation: the number of its generation.
        step: the number of that step of the training, from 0.
        loss: mean over its microbatches.
        staleness: by stage, updates between the weights of a gradient and those it was applied to; the step's mean.
        seconds: from the end of the step before.
        digest: of all parameters after the last step and the last round; "": the cluster is not done.
    """

    generation: int = field(metadata={"stored": "clusters"})
    step: int
    loss: float
    staleness: list[float] = field(metadata={"kind": list})
    seconds: float
    digest: str

    def __post_init__(self) -> None:
        if not all(type(each) in (int, float) for each in self.staleness):
            raise ValueError(f"ClusterProgress.staleness: no numbers (got: {self.staleness!r:.80})")


class RoundEnd(Enum):
    """How a round ends, on all nodes alike."""

    COMMITTED = "every node has the whole average, and applies it"
    REFUSED = "a slice had another length, or numbers that are not finite: no node applies it, and training goes on"
    GENERATION_ENDS = "the generation ends first: no node applies it"


@dataclass(frozen=True, slots=True)
class RoundRecord(Record):
    """The last committed round of averaging: every node had the whole average of its layers before it was written.

    Args:
        generation: the number of the generation that averaged.
        number: of the round, from 1; 0: none is committed.
        refused: the refused rounds, each with the cluster that sent the slice.
        fact: of the last of these, which node sent what.
    """

    generation: int = field(metadata={"stored": "clusters"})
    number: int
    refused: list[list[int]] = field(default_factory=list, metadata={"kind": list, "absent": []})
    fact: str = field(default="", metadata={"absent": ""})

    def __post_init__(self) -> None:
        if not all(type(each) is list and [*map(type, each)] == [int, int] for each in self.refused):
            raise ValueError(f"RoundRecord.refused: no rounds and clusters (got: {self.refused!r:.80})")


@dataclass(frozen=True, slots=True)
class GenerationEnding(Record):
    """The generation with this number ends: no further round of it is committed, and each of its clusters stops."""

    generation: int = field(metadata={"stored": "clusters"})


@dataclass(frozen=True, slots=True)
class WaitingNodes(Record):
    """What the nodes without a cluster wait for, in words; "": nothing."""

    fact: str


@dataclass(frozen=True, slots=True)
class ClusterStop(Record):
    """What a cluster had done when it stopped, so that others can go on.

    Args:
        generation: the number of its generation.
        done: steps of the training done before the last committed round, of one cluster alone before its end: all
            of them are in its parameters.
        steps_since_round: the steps that it trained since, and that are in no average.
    """

    generation: int = field(metadata={"stored": "clusters"})
    done: int
    steps_since_round: list[int] = field(metadata={"kind": list, "stored": "apart"})

    def __post_init__(self) -> None:
        if not are_steps(self.steps_since_round):
            raise ValueError(f"ClusterStop.apart: no steps (got: {self.steps_since_round!r:.80})")
