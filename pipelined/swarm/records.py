"""The records that a swarm keeps in its directory: its members, its leader, and the committed step.

    head              Head             the committed step
    took/N            Took             the peers that took part in it, of the stages N, N + 64, N + 128, ...;
                                       a commit writes it only if they differ from those of the step before
    conductor         LeaderRecord     the trainer that leads; expires with its lease
    came/NAME         (an address)     a peer that waits for a stage from the leader; expires with its lease
    lost              Lost             the stages that no peer holds, as the leader sees them
    peers/NAME        Peer             a peer; expires with its lease
    stage/N/NAME      Peer             the same record again, for processes that follow one stage
    trainers/NAME     Trainer          a trainer; expires with its lease
    observers/NAME    Observer         a process that reads states; expires with its lease
    saved/NAME        Saved            what a peer has on disk; expires with its lease
    evicted/NAME      Evicted          a peer that the leader evicted and that must stay away; expires with the pause
    evaluated         Evaluated        the last loss on validation data, and the version at which it was measured

Every field of a record is checked when it is read, because any process with the key can write records. An incarnation
is the number of the lease that a record is bound to, so a newer one is always greater.
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
"""Most keys that list the peers of a step: they and the head are written in one transaction."""

DIGEST_BYTES = 8
"""Bytes of a name's digest, in records of many names. Two of 20,000 names have equal digests at a chance of 10^-11."""

Members = frozenset[bytes]
"""Peers by the digests of their names, so that the size of a record follows from their number alone."""

MOST_STAGES = 4096
"""Most stages of a model; a record with more is refused before any list of stages is made."""


class Phase(StrEnum):
    """What a peer is doing."""

    JOINING = "joining"  # fetching its stage's state
    SERVING = "serving"
    DRAINING = "parting"  # serves, and leaves as soon as another peer of its stage stays; persisted as "parting"
    LEAVING = "leaving"  # accepts no new work; its sum still counts


PHASES = frozenset(Phase)


class Version(NamedTuple):
    """A version of the parameters: the number of steps, and a name for the totals of these steps.

    Args:
        step: number of steps taken.
        lineage: names the run and, by a digest, the totals of all its steps: two states of one version are equal to the
            bit. "" before the first step.
    """

    step: int
    lineage: str

    @property
    def is_untrained(self) -> bool:
        """Whether no step was taken and nothing was loaded: every peer builds this state itself."""
        return self == (0, "")

    @property
    def run(self) -> str:
        """The name of the run: equal for all versions that follow from the same first step."""
        return self.lineage.partition("-")[0]


class SavedStage(NamedTuple):
    """A saved state of one stage.

    Args:
        step: number of steps taken.
        stage: number of the stage.
        stages: number of stages of the model.
        lineage: as in `Version`; equal for all stages of a step.
    """

    step: int
    stage: int
    stages: int
    lineage: str

    @property
    def version(self) -> Version:
        return Version(self.step, self.lineage)


def common_step(saved: Iterable[SavedStage]) -> SavedStage | None:
    """The latest step at which every stage was saved in one lineage, as the entry of stage 0; None: no such step."""
    stages: dict[tuple[int, str, int], set[int]] = {}
    for entry in saved:
        stages.setdefault((entry.step, entry.lineage, entry.stages), set()).add(entry.stage)
    whole = [key for key, there in stages.items() if there >= set(range(key[2]))]
    return max((SavedStage(step, 0, count, lineage) for step, lineage, count in whole), default=None)


def saved_steps(saved: Iterable[SavedStage]) -> str:
    """The saved steps of each stage, in words: "steps 10, 15: stage 0, 1; no step: stage 2"; "": nothing was saved.

    If a step was saved in several lineages, the end of each lineage is shown, because their stages do not match.
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
    """The prefix of the keys of a stage's peers."""
    return f"{STAGES}{stage}/"


def took_key(stage: int) -> str:
    """The key of the record that lists which peers of a stage took part in the committed step."""
    return f"{TOOK}{stage % TOOK_KEYS}"


def name_digest(name: str) -> bytes:
    """The digest of a peer's name, as used in `Members`."""
    return hashlib.blake2b(name.encode(), digest_size=DIGEST_BYTES).digest()


def members_of(names: Iterable[str]) -> Members:
    """The peers of these names."""
    return frozenset(map(name_digest, names))


def _read_members(field_name: str, value: object) -> Members:
    """Read members: digests one after another, or a list of names, as in older records.

    Raises:
        ValueError: the value is neither.
    """
    if type(value) is bytes and len(value) % DIGEST_BYTES == 0:
        return frozenset(value[at : at + DIGEST_BYTES] for at in range(0, len(value), DIGEST_BYTES))
    if type(value) is list and all(type(name) is str for name in value):
        return members_of(value)
    if type(value) is frozenset:
        return value
    raise ValueError(f"{field_name} has members that are neither digests nor names (got: {value!r:.80})")


class Record:
    """A record: packed to bytes, and unpacked with checks."""

    @property
    def index(self) -> str | None:
        """A second key under which this record is stored; None: no second key."""
        return None

    def pack(self) -> bytes:
        return msgpack.packb(asdict(self))

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Read a record.

        Raises:
            ValueError: the bytes are not a record of this kind; the text names the field.
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
    """The type of each field; cached, because in a large swarm every process reads every record."""
    return {entry.name: entry.metadata.get("kind") or entry.type for entry in fields(cls)}


def address_in(data: bytes) -> str:
    """The address in a record of any kind; "" if it has no address, or cannot be read."""
    try:
        address = _mapping(Record, data).get("address")
    except ValueError:
        return ""
    return address if type(address) is str else ""


def _mapping(cls: type, data: bytes) -> dict[str, Any]:
    try:
        told = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:  # TypeError: a list as a key
        raise ValueError(f"not a {cls.__name__}: {error}") from error
    if type(told) is not dict or any(type(name) is not str for name in told):
        raise ValueError(f"not a {cls.__name__} (got: {type(told).__name__})")
    return told


@dataclass(frozen=True, slots=True)
class Peer(Record):
    """A peer.

    Args:
        address: of its endpoint.
        incarnation: number of the lease that this record is bound to.
        stage: the stage that it holds, or fetches.
        phase: see `Phase`.
        model: digest of model, code and tokenizer.
        heir: name of its successor, the peer that took over its sum before it left; "": no successor.
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
    """A trainer."""

    name: str
    address: str
    incarnation: int
    model: str


@dataclass(frozen=True, slots=True)
class Observer(Record):
    """A process that reads the state of every stage and holds none. Peers send it states; no decision counts it."""

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
    """The peers that took part in the last summed step, of some of the stages.

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
    """The stages without a peer that holds their state. A peer with saved states looks for them on its disk again."""

    stages: list[int] = field(metadata={"kind": list})

    def __post_init__(self) -> None:
        if not all(type(stage) is int for stage in self.stages):
            raise ValueError(f"Lost.stages is not a list of stages (got: {self.stages!r:.80})")


@dataclass(frozen=True, slots=True)
class Head(Record):
    """The committed step.

    Args:
        step: number of the next step; 0 before the first.
        round: names the round of the last sums, and so its members; "" before the first.
        lineage: names the totals that led here, independent of which peers took part; "" before the first.
        basis: names what these parameters follow from: the lineage, or, where updates are delayed, the lineage of the
            step before. Work for another basis is useless.
        members: by stage, the peers that took part, as far as known; empty unless `was_summed`. Names are read as their
            digests.
        scale: factor of their sums in the update.
        loss: mean over the step's samples; 0 before the first.
        norm: of the mean gradient, over all stages.
        moves: new stages of the peers that must move from here on, by name.
        stages: number of stages of the model.
        model: digest of the whole model; a process with another model is refused.
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
        """The directory entries of this head, by key. A process reads only the members of its own stage, and these are
        written only if they differ from those known.

        Args:
            known: the directory's records under the keys `took/N`.
        """
        took: dict[str, dict[int, Members]] = {}
        for stage, members in enumerate(self.members):
            took.setdefault(took_key(stage), {})[stage] = members
        changed = {key: now for key, members in took.items() if (now := Took(members)) != known.get(key)}
        return {HEAD: self.pack(), **{key: now.pack() for key, now in changed.items()}}

    def pack(self) -> bytes:
        """Pack without the members, because every process reads every head; a flag says whether there are any."""
        return msgpack.packb(asdict(replace(self, members=[])) | {"members": [[]] if self.members else []})

    def with_members(self, took: Iterable[Took]) -> "Head":
        """The same head with the members of the stages that these records list, if sums led here."""
        known = {stage: members for each in took for stage, members in each.members.items() if stage < self.stages}
        if not known or not self.was_summed:
            return self
        return replace(self, members=[known.get(stage, Members()) for stage in range(self.stages)])

    @property
    def was_summed(self) -> bool:
        """Whether sums led here. False where training begins, and where all stages load what was saved."""
        return bool(self.members)

    def was_taken_by(self, name: str, stage: int) -> bool:
        """Whether this peer of a stage took part in the sums that led here; always False unless `was_summed`."""
        return stage < len(self.members) and name_digest(name) in self.members[stage]

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", [_read_members("Head.members", each) for each in self.members])
        if not all(type(name) is str and type(stage) is int for name, stage in self.moves.items()):
            raise ValueError(f"Head.moves is not a stage by name (got: {self.moves!r:.80})")
        if not 1 <= self.stages <= MOST_STAGES or self.step < 0:
            raise ValueError(f"Head of no model (stages: {self.stages}, step: {self.step})")


@dataclass(frozen=True, slots=True)
class Evicted(Record):
    """A peer that the leader evicted. The key is bound to a lease that is never renewed: its expiry ends the pause.

    Args:
        times: evictions in a row, including this one.
    """

    times: int

    def __post_init__(self) -> None:
        if self.times < 1:
            raise ValueError(f"Evicted.times is no count of evictions (got: {self.times})")


@dataclass(frozen=True, slots=True)
class Evaluated(Record):
    """The loss of one step's parameters on validation data.

    It is not part of the head, because the head's revision names the current work: a new loss must not change that.

    Args:
        step: number of steps taken.
        lineage: as in `Version`.
        loss: mean over the samples of the validation data.
    """

    step: int
    lineage: str
    loss: float

    @property
    def version(self) -> Version:
        return Version(self.step, self.lineage)
