"""What a swarm keeps in its directory: its members, its leader, and the step that stands. They agree on nothing else.

    head              Head             the step that stands
    took/N            Took             the peers that took part in it, of every stage whose number has this remainder;
                                       changed by a commit only where they are others than at the step before
    conductor         LeaderRecord     the trainer that leads; dies with its lease
    came/NAME         (an address)     that a peer came, which the leader is to place; dies with its lease
    lost              Lost             the stages whose state no peer holds, as the leader sees them
    peers/NAME        Peer             a peer; dies with its lease
    stage/N/NAME      Peer             the same again, for those that follow one stage
    trainers/NAME     Trainer          a trainer; dies with its lease
    observers/NAME    Observer         a process that reads states; dies with its lease
    saved/NAME        Saved            what a peer has on disk; dies with its lease
    evicted/NAME      Evicted          a peer that the leader evicted and that is to stay away; dies with the pause
    evaluated         Evaluated        the last loss on validation data, and where it was measured

The one rule: a record read is checked field by field, for anybody with the key may have written it. An incarnation is
the number of the lease that a record is bound to, so a newer one is always greater.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple, Self

import msgpack

HEAD, LEADER, CAME, PEERS, TRAINERS, SAVED = "head", "conductor", "came/", "peers/", "trainers/", "saved/"
EVALUATED, OBSERVERS, STAGES, TOOK, LOST = "evaluated", "observers/", "stage/", "took/", "lost"
EVICTED = "evicted/"

TOOK_KEYS = 64
"""At most so many keys say which peers took a step: they and the head are put in one transaction."""

DIGEST_BYTES = 8
"""Of a name where many stand in one record. Of 20,000 names two have one digest with a chance of 1 in 10^11."""

Members = frozenset[bytes]
"""Peers by the digests of their names, so that the size of a record follows from their number alone."""

MOST_STAGES = 4096
"""At most so many stages has a model; more are refused in a record before any list of stages is made."""


class Phase(StrEnum):
    """What a peer is doing."""

    JOINING = "joining"  # fetching its stage's state
    SERVING = "serving"
    DRAINING = "parting"  # serves, and leaves as soon as another peer of its stage stays; persisted as "parting"
    LEAVING = "leaving"  # takes no new work; what it has counted still counts


PHASES = frozenset(Phase)


class Version(NamedTuple):
    """A version of the parameters: how many steps were taken, and by which totals.

    Args:
        step: how many steps were taken.
        lineage: names the run and how it came there, by the totals of all steps: two states of one version are equal
            to the bit. "" before the first step.
    """

    step: int
    lineage: str

    @property
    def is_untrained(self) -> bool:
        """Whether no step was taken and nothing was loaded: every peer builds this state itself."""
        return self == (0, "")

    @property
    def run(self) -> str:
        """The same for all that one first step led to."""
        return self.lineage.partition("-")[0]


class SavedStage(NamedTuple):
    """What was saved of one stage.

    Args:
        step: how many steps had been taken.
        stage: which, of so many `stages`.
        lineage: names how training came there; the same for all stages of a step.
    """

    step: int
    stage: int
    stages: int
    lineage: str

    @property
    def version(self) -> Version:
        return Version(self.step, self.lineage)


def common_step(saved: Iterable[SavedStage]) -> SavedStage | None:
    """The latest step at which every stage was saved in one lineage, as its first stage was saved."""
    stages: dict[tuple[int, str, int], set[int]] = {}
    for entry in saved:
        stages.setdefault((entry.step, entry.lineage, entry.stages), set()).add(entry.stage)
    whole = [key for key, there in stages.items() if there >= set(range(key[2]))]
    return max((SavedStage(step, 0, count, lineage) for step, lineage, count in whole), default=None)


def saved_steps(saved: Iterable[SavedStage]) -> str:
    """Which steps were saved of which stage, in words: "steps 10, 15: stage 0, 1; no step: stage 2"; "": none of any.

    A step that was saved in several lineages is told with the end of each, since stages of two do not fit.
    """
    stages_saved = sorted(set(saved))
    lineages: dict[int, set[str]] = {}
    counts = {entry.stages for entry in stages_saved}
    steps: dict[tuple[int, int], list[str]] = {(n, at): [] for n in counts for at in range(n)}
    for entry in stages_saved:
        lineages.setdefault(entry.step, set()).add(entry.lineage)
    for entry in stages_saved:
        several = len(lineages[entry.step]) > 1
        steps[entry.stages, entry.stage].append(f"{entry.step} ({entry.lineage[-4:]})" if several else f"{entry.step}")
    alike: dict[tuple[int, str], list[str]] = {}
    for (count, stage), told in sorted(steps.items()):
        alike.setdefault((count, ", ".join(told)), []).append(str(stage))
    several = len(counts) > 1
    return "; ".join(
        f"{f'steps {told}' if told else 'no step'}: stage {', '.join(stages)}{f' of {count}' if several else ''}"
        for (count, told), stages in alike.items()
    )


def stage_folder(stage: int) -> str:
    """What the keys of a stage's peers begin with."""
    return f"{STAGES}{stage}/"


def took_key(stage: int) -> str:
    """The key that says which peers of a stage took the step that stands."""
    return f"{TOOK}{stage % TOOK_KEYS}"


def name_digest(name: str) -> bytes:
    """What stands for a peer's name in `Members`."""
    return hashlib.blake2b(name.encode(), digest_size=DIGEST_BYTES).digest()


def members_of(names: Iterable[str]) -> Members:
    """The peers of these names."""
    return frozenset(map(name_digest, names))


def _read_members(field_name: str, value: object) -> Members:
    """Members as a record has them: digests one after another, or a list of names, as records had them before.

    Raises:
        ValueError: it is neither.
    """
    if type(value) is bytes and len(value) % DIGEST_BYTES == 0:
        return frozenset(value[at : at + DIGEST_BYTES] for at in range(0, len(value), DIGEST_BYTES))
    if type(value) is list and all(type(name) is str for name in value):
        return members_of(value)
    if type(value) is frozenset:
        return value
    raise ValueError(f"{field_name} has members that are neither digests nor names (got: {value!r:.80})")


class Record:
    """To bytes and back, checked."""

    @property
    def index(self) -> str | None:
        """A second key that this record is to be found under; None: there is none."""
        return None

    def pack(self) -> bytes:
        return msgpack.packb(asdict(self))

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Read a record.

        Raises:
            ValueError: it is none of this kind; the field is named.
        """
        told, wanted = _mapping(cls, data), _kinds(cls)
        if told.keys() != wanted.keys():
            raise ValueError(f"not a {cls.__name__} (fields: {sorted(told)}, expected: {sorted(wanted)})")
        for name, value in told.items():
            if type(value) is not wanted[name]:
                fact = f"{cls.__name__}.{name} is a {type(value).__name__}"
                raise ValueError(f"{fact}, expected a {wanted[name].__name__}")
        return cls(**told)


@cache
def _kinds(cls: type) -> Mapping[str, type]:
    """The type of each field: worked out once, for in a large swarm every process reads every record."""
    return {entry.name: entry.metadata.get("kind") or entry.type for entry in fields(cls)}


def address_in(data: bytes) -> str:
    """The address that a record names, of whatever kind it is; "" where it names none, or cannot be read."""
    try:
        address = _mapping(Record, data).get("address")
    except ValueError:
        return ""
    return address if type(address) is str else ""


def _mapping(cls: type, data: bytes) -> dict[str, Any]:
    try:
        told = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:  # TypeError: a list for a key
        raise ValueError(f"not a {cls.__name__}: {error}") from error
    if type(told) is not dict or any(type(name) is not str for name in told):
        raise ValueError(f"not a {cls.__name__} (got: {type(told).__name__})")
    return told


@dataclass(frozen=True, slots=True)
class Peer(Record):
    """A peer as all see it.

    Args:
        address: of its endpoint.
        incarnation: the lease that this stands by.
        stage: which it holds, or is fetching.
        phase: see `Phase`.
        model: digest of model, code and tokenizer.
        heir: name of its successor, the peer that took over its sum before it left; "": none.
        saves_every: steps from one save of its stage to the next; 0: it saves nothing, or its last save failed.
    """

    name: str
    address: str
    incarnation: int
    stage: int
    phase: str
    model: str
    heir: str = ""
    saves_every: int = 0

    @property
    def index(self) -> str:
        return stage_folder(self.stage) + self.name

    def __post_init__(self) -> None:
        if not 0 <= self.stage < MOST_STAGES or self.phase not in PHASES:
            raise ValueError(f"Peer of no stage or phase (stage: {self.stage}, phase: {self.phase!r:.40})")


@dataclass(frozen=True, slots=True)
class Trainer(Record):
    """A trainer as all see it."""

    name: str
    address: str
    incarnation: int
    model: str


@dataclass(frozen=True, slots=True)
class Observer(Record):
    """A process that reads the state of every stage and holds none. Peers give it states; no decision counts it."""

    name: str
    address: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class LeaderRecord(Record):
    """The trainer that leads."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class Saved(Record):
    """What a peer has on disk: the fields of each `SavedStage`."""

    marks: list[list[Any]] = field(metadata={"kind": list})

    def __post_init__(self) -> None:
        for mark in self.marks:
            if type(mark) is not list or [type(part) for part in mark] != [int, int, int, str]:
                raise ValueError(f"Saved.marks has no mark (got: {mark!r:.80})")
            step, stage, stages, _ = mark
            if not (step >= 0 and 0 <= stage < stages <= MOST_STAGES):
                raise ValueError(f"Saved.marks has a mark of no stage (step: {step}, stage: {stage} of {stages})")

    def all(self) -> list[SavedStage]:
        return [SavedStage(*mark) for mark in self.marks]


@dataclass(frozen=True, slots=True)
class Took(Record):
    """The peers that took part in the last step that was summed, of some of the stages.

    Args:
        members: by stage.
    """

    members: dict[int, Members] = field(metadata={"kind": dict})

    def pack(self) -> bytes:
        return msgpack.packb({"members": {stage: b"".join(sorted(each)) for stage, each in self.members.items()}})

    def __post_init__(self) -> None:
        if any(type(stage) is not int or not 0 <= stage < MOST_STAGES for stage in self.members):
            raise ValueError(f"Took.members is not members by stage (got: {self.members!r:.80})")
        read = {stage: _read_members("Took.members", each) for stage, each in self.members.items()}
        object.__setattr__(self, "members", read)


@dataclass(frozen=True, slots=True)
class Lost(Record):
    """The stages whose state no peer holds. A peer that finds one here looks again at what it has on disk."""

    stages: list[int] = field(metadata={"kind": list})

    def __post_init__(self) -> None:
        if not all(type(stage) is int for stage in self.stages):
            raise ValueError(f"Lost.stages is not a list of stages (got: {self.stages!r:.80})")


@dataclass(frozen=True, slots=True)
class Head(Record):
    """The step that stands: what was decided last.

    Args:
        step: the next to be taken; 0 before the first.
        round: names the sums that led here, and so who took part; "" before the first.
        lineage: names how training came here, whoever took part; "" before the first.
        basis: names what the parameters here follow from: the lineage, or, where updates are delayed, that of the step
            before. Of work under way it says whether it is of use.
        members: by stage, the peers that took part, as far as they are known; empty unless `was_summed`. Names are read
            as their digests.
        scale: what their sums were multiplied by for the update.
        loss: mean over the step's samples; 0 before the first.
        norm: of the mean gradient, over all stages.
        moves: peers that are to go to other stages from here on, by name.
        stages: how many stages the model has.
        model: digest of the whole model: who has another is refused.
    """

    stages: int
    model: str
    step: int = 0
    round: str = ""
    members: list[Members] = field(default_factory=list, metadata={"kind": list})
    scale: float = 0.0
    loss: float = 0.0
    norm: float = 0.0
    moves: dict[str, int] = field(default_factory=dict, metadata={"kind": dict})
    lineage: str = ""
    basis: str = ""

    @property
    def version(self) -> Version:
        return Version(self.step, self.lineage)

    def entries(self, known: Mapping[str, Took]) -> dict[str, bytes]:
        """What is to be put into the directory, by key, so that this head is there: a peer learns of its own stage's
        members alone, and of them only where they are others than before.

        Args:
            known: what the directory has under the keys `took/N`.
        """
        took: dict[str, dict[int, Members]] = {}
        for stage, members in enumerate(self.members):
            took.setdefault(took_key(stage), {})[stage] = members
        changed = {key: now for key, members in took.items() if (now := Took(members)) != known.get(key)}
        return {HEAD: self.pack(), **{key: now.pack() for key, now in changed.items()}}

    def pack(self) -> bytes:
        """Without the members, for every process learns of every head; but it says whether there are any."""
        return msgpack.packb(asdict(replace(self, members=[])) | {"members": [[]] if self.members else []})

    def with_members(self, took: Iterable[Took]) -> "Head":
        """The same, with the members of those stages that these name, if sums led here."""
        known = {stage: members for each in took for stage, members in each.members.items() if stage < self.stages}
        if not known or not self.was_summed:
            return self
        return replace(self, members=[known.get(stage, Members()) for stage in range(self.stages)])

    @property
    def was_summed(self) -> bool:
        """Whether sums led here. False where training begins, and where all stages load what was saved."""
        return bool(self.members)

    def was_taken_by(self, name: str, stage: int) -> bool:
        """Whether this peer of a stage took part in the sums that led here; False of all unless `was_summed`."""
        return stage < len(self.members) and name_digest(name) in self.members[stage]

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", [_read_members("Head.members", each) for each in self.members])
        if not all(type(name) is str and type(stage) is int for name, stage in self.moves.items()):
            raise ValueError(f"Head.moves is not a stage by name (got: {self.moves!r:.80})")
        if not 1 <= self.stages <= MOST_STAGES or self.step < 0:
            raise ValueError(f"Head of no model (stages: {self.stages}, step: {self.step})")


@dataclass(frozen=True, slots=True)
class Evicted(Record):
    """A peer that the leader evicted. The key is bound to a lease that is never renewed: its end ends the pause.

    Args:
        times: evictions in a row, this one counted.
    """

    times: int

    def __post_init__(self) -> None:
        if self.times < 1:
            raise ValueError(f"Evicted.times is no count of evictions (got: {self.times})")


@dataclass(frozen=True, slots=True)
class Evaluated(Record):
    """What the parameters of one step come to on validation data.

    It is no part of the head, whose revision names the work that is under way: who learns a loss goes on with that.

    Args:
        step: how many steps had been taken.
        lineage: names how training came there.
        loss: mean over the samples of the validation data.
    """

    step: int
    lineage: str
    loss: float

    @property
    def version(self) -> Version:
        return Version(self.step, self.lineage)
