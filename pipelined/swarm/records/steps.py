"""The records that a swarm keeps in its directory, beside those of its members.

    head              Head           the committed step
    took/N            StepMembers      the peers that took part in it, of the stages N, N + 64, N + 128, ...;
                                       a commit writes it only if they differ from those of the step before
    lost              LostStages       the stages that no peer holds, as the leader sees them
    evaluated         Evaluation       the last loss on validation data, and the version at which it was measured

Steps are numbered from 0, in words too: the head's `step` is the next one, and counts those done ("after 4 steps").

The words under which a field is stored stay, so that a journal of an earlier version can be read.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgpack

from pipelined.membership.record import Record
from pipelined.state.stages.versions import MAX_STAGES, Version

HEAD, EVALUATED, STEP_MEMBERS, LOST = "head", "evaluated", "took/", "lost"

MEMBERS_KEYS = 64
"""Most keys that list the peers of a step: they and the head are written in one transaction."""

DIGEST_BYTES = 8
"""Bytes of a name's digest, in records of many names. Two of 20,000 names have equal digests at a chance of 10^-11."""

Members = frozenset[bytes]
"""Peers by the digests of their names, so that the size of a record follows from their number alone."""


def members_key(stage: int) -> str:
    """The key of the record that lists which peers of a stage took part in the committed step."""
    return f"{STEP_MEMBERS}{stage % MEMBERS_KEYS}"


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
        return frozenset(value[start : start + DIGEST_BYTES] for start in range(0, len(value), DIGEST_BYTES))
    if type(value) is list and all(type(name) is str for name in value):
        return members_of(value)
    if type(value) is frozenset:
        return value
    raise ValueError(f"{field_name} has members that are neither digests nor names (got: {value!r:.80})")


@dataclass(frozen=True, slots=True)
class StepMembers(Record):
    """The peers that took part in the last summed step, of some of the stages.

    Args:
        members: by stage.
    """

    members: dict[int, Members] = field(metadata={"kind": dict})

    def pack(self) -> bytes:
        return msgpack.packb({"members": {stage: b"".join(sorted(members)) for stage, members in self.members.items()}})

    def __post_init__(self) -> None:
        if any(type(stage) is not int or not 0 <= stage < MAX_STAGES for stage in self.members):
            raise ValueError(f"StepMembers.members is not members by stage (got: {self.members!r:.80})")
        members = {stage: _read_members("StepMembers.members", value) for stage, value in self.members.items()}
        object.__setattr__(self, "members", members)


@dataclass(frozen=True, slots=True)
class LostStages(Record):
    """The stages without a peer that holds their state. A peer with saved states looks for them on its disk again."""

    stages: list[int] = field(metadata={"kind": list})

    def __post_init__(self) -> None:
        if not all(type(stage) is int for stage in self.stages):
            raise ValueError(f"LostStages.stages is not a list of stages (got: {self.stages!r:.80})")


@dataclass(frozen=True, slots=True)
class Head(Record):
    """A committed step: the record under `head`.

    Args:
        step: number of the next step; 0 before the first. The same as before where a step is computed again.
        round: names the round of the last sums, and so its members; "" before the first.
        lineage: names the totals that led here, independent of which peers took part; "" before the first.
        parameter_version: names what these parameters follow from: the lineage, or, where updates are delayed, the
            lineage of the step before. Work for other parameters is useless. Stored as "basis".
        members: digests of the names of the peers that took part, by stage; empty where no sums led here.
        scale: factor of their sums in the update; 0: they only set the grids of exact sums, see `repeats_step`.
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
    parameter_version: str = field(default="", metadata={"stored": "basis"})

    @property
    def version(self) -> Version:
        return Version(self.step, self.lineage)

    def entries(self, records: Mapping[str, StepMembers]) -> dict[str, bytes]:
        """The directory entries of this head, by key. A process reads only the members of its own stage, and these are
        written only if they differ from those known.

        Args:
            records: the directory's records under the keys `took/N`, by N.
        """
        members_by_key: dict[str, dict[int, Members]] = {}
        for stage, members in enumerate(self.members):
            members_by_key.setdefault(members_key(stage), {})[stage] = members
        entries = {HEAD: self.pack()}
        for key, members_by_stage in members_by_key.items():
            record = StepMembers(members_by_stage)
            if record != records.get(key.removeprefix(STEP_MEMBERS)):
                entries[key] = record.pack()
        return entries

    def pack(self) -> bytes:
        """Pack without the members, because every process reads every head; a flag says whether there are any."""
        return msgpack.packb(self.stored() | {"members": [[]] if self.members else []})

    def with_members(self, records: Iterable[StepMembers]) -> "Head":
        """The same head with the members of the stages that these records list, if sums led here."""
        members_by_stage = {
            stage: members for record in records for stage, members in record.members.items() if stage < self.stages
        }
        if not members_by_stage or not self.was_summed:
            return self
        return replace(self, members=[members_by_stage.get(stage, Members()) for stage in range(self.stages)])

    @property
    def was_summed(self) -> bool:
        """Whether sums led here. False where training begins, and where all stages load what was saved."""
        return bool(self.members)

    @property
    def repeats_step(self) -> bool:
        """Whether the sums that led here did not fit: the parameters are those of before, on which the step is computed
        again, on the grids that these sums give.
        """
        return self.was_summed and not self.scale

    def had_member(self, name: str, stage: int) -> bool:
        """Whether this peer of a stage took part in the sums that led here; always False unless `was_summed`."""
        return stage < len(self.members) and name_digest(name) in self.members[stage]

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", [_read_members("Head.members", member) for member in self.members])
        if not all(type(name) is str and type(stage) is int for name, stage in self.moves.items()):
            raise ValueError(f"Head.moves is not a stage by name (got: {self.moves!r:.80})")
        if not 1 <= self.stages <= MAX_STAGES or self.step < 0:
            raise ValueError(f"Head: stages or step out of range (stages: {self.stages}, step: {self.step})")


@dataclass(frozen=True, slots=True)
class Evaluation(Record):
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
