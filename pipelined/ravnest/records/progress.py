"""The records of how far the clusters of a generation are.

progress/C        ClusterProgress       the last step that cluster C has completed
round             RoundRecord           the last committed round of averaging, and the refused ones
stopped/C         ClusterStop           what cluster C had done when it stopped for its generation's end
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum

from pipelined.membership.record import Record
from pipelined.ravnest.records.places import are_steps

PROGRESS, ROUND, STOPPED = "progress/", "round", "stopped/"


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
        if not all(type(delay) in (int, float) for delay in self.staleness):
            raise ValueError(f"ClusterProgress.staleness: no numbers (got: {self.staleness!r:.80})")


class UnequalClusters(Exception):
    """Clusters hold different parameters after the last round: a node computed something else than the others."""


def common_digest(digests: Collection[str]) -> str:
    """The digest that all clusters have after the last round. Raises UnequalClusters."""
    digest, *other_digests = dict.fromkeys(digests)
    if other_digests:
        raise UnequalClusters(f"the clusters hold different averages (digests: {', '.join(digests)})")
    return digest


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
        if not all(type(entry) is list and [*map(type, entry)] == [int, int] for entry in self.refused):
            raise ValueError(f"RoundRecord.refused: no rounds and clusters (got: {self.refused!r:.80})")


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
