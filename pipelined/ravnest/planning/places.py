"""The parts of a generation's record: places, the nodes that hold them, and how it goes on. No torch."""

from collections.abc import Sequence
from typing import NamedTuple

from pipelined.schedules.parts.knobs import MAX_AHEAD

MAX_ALIVE = MAX_AHEAD
"""The most microbatches alive on a stage, as the schedule takes them."""
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
        """As a record has it, and `read_place` takes it: one list without the node's own."""
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


class Continuation(NamedTuple):
    """How a generation goes on after another, with what their nodes have in memory.

    Args:
        previous: the number of the one before; 0: this one begins anew, or with what was saved.
        rounds: how many rounds of that one are committed.
        late: how many clusters are new, the last ones: they begin with the average of the first round.
        steps_to_repeat: steps before the next ones, which no remaining cluster has trained: they come first.
        steps_since_round: of each cluster that goes on, the steps in its parameters that are in no average.
    """

    previous: int = 0
    rounds: int = 0
    late: int = 0
    steps_to_repeat: Sequence[int] = ()
    steps_since_round: Sequence[Sequence[int]] = ()


ANEW = Continuation()


def are_steps(value: object) -> bool:
    """Whether this is a list of numbers of steps."""
    return isinstance(value, (list, tuple)) and all(type(each) is int and 0 <= each < MAX_STEP for each in value)


def read_continuation(value: object, rows: int) -> Continuation:
    """How a generation goes on. Raises ValueError: it is something else."""
    found = Continuation(*value) if isinstance(value, (list, tuple)) and len(value) == len(ANEW) else None
    if (
        found is None
        or [type(each) for each in found[:3]] != 3 * [int]
        or min(found[:3]) < 0
        or found.late >= max(1, rows)
        or not are_steps(found.steps_to_repeat)
        or not isinstance(found.steps_since_round, (list, tuple))
        or not all(map(are_steps, found.steps_since_round))
        or (len(found.steps_since_round) != rows - found.late if found.previous else any(found))
    ):
        raise ValueError(f"Generation.going: not how a generation goes on (got: {value!r:.200})")
    return found._replace(
        steps_to_repeat=[*found.steps_to_repeat], steps_since_round=[[*each] for each in found.steps_since_round]
    )


def read_backup(value: object, rows: Sequence[Sequence[StagePlace]]) -> BackupPlace:
    """The backup of a place of these rows. Raises ValueError: it is something else."""
    value = [*value, 0] if isinstance(value, (list, tuple)) and len(value) == 3 else value  # of earlier releases
    kinds = [type(each) for each in value] if isinstance(value, (list, tuple)) else []
    if not isinstance(value, (list, tuple)) or kinds not in ([int, int, kind, int] for kind in (list, tuple, Holder)):
        raise ValueError(f"Generation.backups: no backup (got: {value!r:.80})")
    cluster, stage, holder, room = value
    if [type(each) for each in holder] != [str, str, int]:
        raise ValueError(f"Generation.backups: no node (got: {value!r:.80})")
    if not (0 <= cluster < len(rows) and 0 <= stage < len(rows[cluster]) and 0 <= room < MAX_STEP):
        raise ValueError(f"Generation.backups: no place (got: {value!r:.80})")
    return BackupPlace(cluster, stage, Holder(*holder), room)


def read_place(value: object) -> StagePlace:
    """One stage of one cluster, as it is stored. Raises ValueError: it is something else."""
    value = value.stored if isinstance(value, StagePlace) else value
    if not isinstance(value, (list, tuple)) or [type(each) for each in value] != [str, str, *4 * [int]]:
        raise ValueError(f"Generation.rows: no place (got: {value!r:.80})")
    place = StagePlace(Holder(*value[:3]), *value[3:])
    if not 0 <= place.first < place.end or not 1 <= place.alive <= MAX_ALIVE:
        raise ValueError(f"Generation.rows: layers or microbatches alive out of range (got: {place})")
    return place
