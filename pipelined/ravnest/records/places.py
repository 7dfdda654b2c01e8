"""Places, and the nodes that hold them, as the record of a generation has them."""

from collections.abc import Sequence
from typing import NamedTuple

from pipelined.ravnest.cluster_place import ClusterPlace
from pipelined.schedules import MAX_AHEAD

MAX_STEP = 1 << 53


class Holder(NamedTuple):
    """A node in one incarnation, as a holder of a place."""

    name: str
    address: str
    incarnation: int


class StagePlace(NamedTuple):
    """One stage of one cluster: its node, its layers [first, end), and its most microbatches alive.

    The incarnation is the node's at that time: a node that has left and joined again is not in the cluster.
    """

    holder: Holder
    first: int
    end: int
    alive: int

    @property
    def stored(self) -> list[str | int]:
        """One list without the node's own, as a record has it, and as `read_place` takes it."""
        return [*self.holder, *self[1:]]


class BackupPlace(NamedTuple):
    """The backup of one stage of one cluster: a second node, which does all that the first one does.

    Args:
        room: microbatches of which the inputs may wait in a new backup while it gets the state.
    """

    cluster: int
    stage: int
    holder: Holder
    room: int = 0

    @property
    def place(self) -> ClusterPlace:
        """The place that it backs up."""
        return ClusterPlace(self.cluster, self.stage)


def are_steps(value: object) -> bool:
    """Whether this is a list of numbers of steps."""
    return isinstance(value, (list, tuple)) and all(type(step) is int and 0 <= step < MAX_STEP for step in value)


def read_backup(value: object, clusters: Sequence[Sequence[StagePlace]]) -> BackupPlace:
    """The backup of a place of these clusters. Raises ValueError: it is something else."""
    value = [*value, 0] if isinstance(value, (list, tuple)) and len(value) == 3 else value  # of earlier releases
    kinds = [type(entry) for entry in value] if isinstance(value, (list, tuple)) else []
    if not isinstance(value, (list, tuple)) or kinds not in ([int, int, kind, int] for kind in (list, tuple, Holder)):
        raise ValueError(f"Generation.backups: no backup (got: {value!r:.80})")
    cluster, stage, holder, room = value
    if [type(entry) for entry in holder] != [str, str, int]:
        raise ValueError(f"Generation.backups: no node (got: {value!r:.80})")
    if not (0 <= cluster < len(clusters) and 0 <= stage < len(clusters[cluster]) and 0 <= room < MAX_STEP):
        raise ValueError(f"Generation.backups: no place (got: {value!r:.80})")
    return BackupPlace(cluster, stage, Holder(*holder), room)


def read_place(value: object) -> StagePlace:
    """One stage of one cluster, as it is stored. Raises ValueError: it is something else."""
    value = value.stored if isinstance(value, StagePlace) else value
    if not isinstance(value, (list, tuple)) or [type(entry) for entry in value] != [str, str, *4 * [int]]:
        raise ValueError(f"Generation.rows: no place (got: {value!r:.80})")
    stage_place = StagePlace(Holder(*value[:3]), *value[3:])
    if not 0 <= stage_place.first < stage_place.end or not 1 <= stage_place.alive <= MAX_AHEAD:
        raise ValueError(f"Generation.rows: layers or microbatches alive out of range (got: {stage_place})")
    return stage_place
