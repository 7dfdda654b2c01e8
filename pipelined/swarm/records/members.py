"""The members of a swarm: the records of its peers, trainers, observers and its leader, and a census of its peers.

    conductor         LeaderRecord     the trainer that leads; expires with its lease
    came/NAME         (an address)     a peer that waits for a stage from the leader; expires with its lease
    peers/NAME        PeerRecord       a peer; expires with its lease
    stage/N/NAME      PeerRecord       the same record again, for processes that follow one stage
    trainers/NAME     TrainerRecord    a trainer; expires with its lease
    observers/NAME    ObserverRecord   a process that reads states; expires with its lease
    evicted/NAME      EvictionRecord   a peer that the leader evicted and that must stay away; expires with the pause

An incarnation is the number of the lease that a record is bound to, so a newer one is always greater.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from pipelined.membership.directory import Entry
from pipelined.membership.record import Record
from pipelined.state.stages.versions import MAX_STAGES

LEADER, NEWCOMERS, PEERS, STAGES = "conductor", "came/", "peers/", "stage/"
TRAINERS, OBSERVERS, EVICTED = "trainers/", "observers/", "evicted/"


class Phase(StrEnum):
    """What a peer is doing."""

    JOINING = "joining"  # fetching its stage's state
    SERVING = "serving"
    DRAINING = "parting"  # serves, and leaves as soon as another peer of its stage stays; persisted as "parting"
    LEAVING = "leaving"  # accepts no new work; its sum still counts


PHASES = frozenset(Phase)
WORKING = (Phase.SERVING, Phase.DRAINING)
"""Phases of a peer that accepts work."""
STAY = (Phase.JOINING, Phase.SERVING)
"""Phases of a peer that stays at its stage."""


def stage_folder(stage: int) -> str:
    """The prefix of the keys of a stage's peers."""
    return f"{STAGES}{stage}/"


@dataclass(frozen=True, slots=True)
class PeerRecord(Record):
    """A peer.

    Args:
        address: of its endpoint.
        incarnation: number of the lease that this record is bound to.
        stage: the stage that it holds, or fetches.
        phase: see `Phase`.
        model: digest of model, code and tokenizer.
        successor: name of the peer that took over its sum before it left; "": no successor. Stored as "heir".
        saves_every: steps from one save of its stage to the next; 0: none before the end, or the last one failed.
    """

    name: str
    address: str
    incarnation: int
    stage: int
    phase: str
    model: str
    successor: str = field(default="", metadata={"stored": "heir"})
    saves_every: int = 0

    @property
    def copy_key(self) -> str:
        return stage_folder(self.stage) + self.name

    def __post_init__(self) -> None:
        if not 0 <= self.stage < MAX_STAGES or self.phase not in PHASES:
            raise ValueError(f"Peer: stage or phase out of range (stage: {self.stage}, phase: {self.phase!r:.40})")


def choose_saver(peers: Iterable[PeerRecord], step: int) -> PeerRecord | None:
    """The peer that saves a stage at a step; None if no peer saves at this step.

    It is the longest member among the peers that save at this step, so a new peer never takes over.

    Args:
        peers: that serve the stage.
    """
    saving = [peer for peer in peers if peer.saves_every > 0 and step % peer.saves_every == 0]
    return min(saving, key=lambda peer: peer.incarnation, default=None)


@dataclass(frozen=True, slots=True)
class TrainerRecord(Record):
    """A trainer."""

    name: str
    address: str
    incarnation: int
    model: str


@dataclass(frozen=True, slots=True)
class ObserverRecord(Record):
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
class EvictionRecord(Record):
    """A peer that the leader evicted. The key is bound to a lease that is never renewed: its expiry ends the pause.

    Args:
        times: evictions in a row, including this one.
    """

    times: int

    def __post_init__(self) -> None:
        if self.times < 1:
            raise ValueError(f"EvictionRecord.times is no count of evictions (got: {self.times})")


class Newcomer(NamedTuple):
    """A new peer that waits for its assignment to a stage.

    Args:
        address: of its endpoint.
        revision: of the record with which it announced itself.
    """

    address: str
    revision: int


class Census:
    """The peers of each stage, and how many of them stay; a change costs the same in a swarm of any size.

    A new peer counts at the stage to which the leader assigned it, until its own record names its stage.

    Attributes:
        peers, newcomers: by name.
        record_revisions: by name, the revision of a peer's last record, also of one that cannot be read.

    Cost: O(1) per change. `stage_peers` sorts the peers of a stage once after each change of one of them.
    """

    def __init__(self) -> None:
        self.peers = dict[str, PeerRecord]()
        self.newcomers, self.record_revisions = dict[str, Newcomer](), Counter[str]()
        self._stages = dict[int, dict[str, PeerRecord]]()
        self._ordered, self._holders, self._changes = dict[int, list[PeerRecord]](), Counter[int](), Counter[int]()
        self._assigned = dict[str, int]()  # by name, the stage that a new peer was assigned to
        self._counted_stages, self._staying_counts = (
            dict[str, int](),
            Counter[int](),
        )  # by name, where it counts; by stage, how many
        self._departures = dict[int, list[PeerRecord]]()

    def apply(self, name: str, entry: Entry | None, stage: str | None = None) -> None:
        """Apply the entry of a peer's key; None: it was deleted.

        Args:
            stage: in the key; None: the key has no stage.
        Raises:
            ValueError: the record cannot be read, or names another peer or stage than its key. The deletion of that
                key would not remove such a peer.
        """
        self.record_revisions.pop(name, None)
        if entry is not None:
            self.record_revisions[name] = entry.revision
        self._unassign_if_placed(name)
        peer = PeerRecord.unpack(entry.value) if entry else None
        if peer and (peer.name != name or stage not in (None, str(peer.stage))):
            raise ValueError(f"a peer under another key than its own (name: {peer.name!r:.80}, stage: {peer.stage})")
        self.set_record(name, peer)

    def apply_at_stage(self, key: str, entry: Entry | None) -> None:
        """The same for the key that names the peer's stage too: STAGE/NAME."""
        stage, _, name = key.partition("/")
        if entry or (name in self.peers and str(self.peers[name].stage) == stage):  # otherwise it has moved
            self.apply(name, entry, stage)

    def apply_newcomer(self, name: str, entry: Entry | None) -> None:
        """Apply the entry with which a new peer announces itself; None: it was deleted."""
        self.newcomers.pop(name, None)
        if entry is not None:
            self.newcomers[name] = Newcomer(entry.value.decode(), entry.revision)
        self._unassign_if_placed(name)

    def _unassign_if_placed(self, name: str) -> None:
        """Note that a new peer has left, or has written its own record after it announced itself."""
        newcomer = self.newcomers.get(name)
        if newcomer is None or self.record_revisions[name] >= newcomer.revision:
            self.unassign(name)

    def set_record(self, name: str, peer: PeerRecord | None) -> None:
        """Set the record of the peer of this name; None: the record was deleted."""
        last_record = self.peers.pop(name, None)
        if last_record is not None:
            self._on_changed(last_record.stage)
            del self._stages[last_record.stage][name]
            self._holders[last_record.stage] -= last_record.phase != Phase.JOINING
        if peer is not None:
            self._on_changed(peer.stage)
            self.peers[name] = self._stages.setdefault(peer.stage, {})[name] = peer
            self._holders[peer.stage] += peer.phase != Phase.JOINING
        if last_record is not None and (peer is None or peer.incarnation != last_record.incarnation):
            for departures in self._departures.values():
                departures.append(last_record)
        self._recount(name)

    @contextmanager
    def departures(self) -> Iterator[list[PeerRecord]]:
        """A list that receives the last record of each peer that leaves or starts under another incarnation.

        The block removes what it has read from the list.
        """
        departed_peers = list[PeerRecord]()
        self._departures[id(departed_peers)] = departed_peers
        try:
            yield departed_peers
        finally:
            del self._departures[id(departed_peers)]

    def assign(self, name: str, stage: int) -> None:
        """Count a new peer at the stage that it was assigned to, whatever its record says, until `unassign`."""
        self._assigned[name] = stage
        self._recount(name)

    def unassign(self, name: str) -> None:
        """Count a peer by its own record from now on, or not at all if it has no record."""
        if self._assigned.pop(name, None) is not None:
            self._recount(name)

    def stage_peers(self, stage: int) -> Sequence[PeerRecord]:
        """The peers of a stage, by name."""
        if stage not in self._ordered:
            self._ordered[stage] = [peer for _, peer in sorted(self._stages.get(stage, {}).items())]
        return self._ordered[stage]

    def is_kept(self, stage: int) -> bool:
        """Whether a peer stays at a stage or joins it, by the records alone."""
        return any(peer.phase in STAY for peer in self._stages.get(stage, {}).values())

    def count_changes(self, stage: int) -> int:
        """Number of changes of the peers of a stage; while it is the same, `stage_peers` is the same."""
        return self._changes[stage]

    def count_holding(self, stage: int) -> int:
        """Number of peers that have the state of a stage."""
        return self._holders[stage]

    def count_staying(self, stages: int, excluded: str) -> list[int]:
        """By stage, the number of peers that stay or were assigned staying, without the peer named `excluded`."""
        counts = [self._staying_counts[stage] for stage in range(stages)]
        stage = self._counted_stages.get(excluded, stages)
        if stage < stages:
            counts[stage] -= 1
        return counts

    def _on_changed(self, stage: int) -> None:
        self._ordered.pop(stage, None)
        self._changes[stage] += 1

    def _recount(self, name: str) -> None:
        peer = self.peers.get(name)
        last_stage = self._counted_stages.pop(name, None)
        stage = self._assigned.get(name, peer.stage if peer and peer.phase in STAY else None)
        if last_stage is not None:
            self._staying_counts[last_stage] -= 1
        if stage is not None:
            self._counted_stages[name] = stage
            self._staying_counts[stage] += 1
