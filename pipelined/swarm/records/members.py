"""The records of the members of a swarm: its peers, trainers and observers, and the leader among them.

    conductor         LeaderRecord     the trainer that leads; expires with its lease
    came/NAME         (an address)     a peer that waits for a stage from the leader; expires with its lease
    peers/NAME        Peer             a peer; expires with its lease
    stage/N/NAME      Peer             the same record again, for processes that follow one stage
    trainers/NAME     TrainerRecord    a trainer; expires with its lease
    observers/NAME    Observer         a process that reads states; expires with its lease
    evicted/NAME      Eviction         a peer that the leader evicted and that must stay away; expires with the pause

An incarnation is the number of the lease that a record is bound to, so a newer one is always greater.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from pipelined.directory.record import Record
from pipelined.state.versions import MAX_STAGES

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
class Peer(Record):
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
    def index(self) -> str:
        return stage_folder(self.stage) + self.name

    def __post_init__(self) -> None:
        if not 0 <= self.stage < MAX_STAGES or self.phase not in PHASES:
            raise ValueError(f"Peer: stage or phase out of range (stage: {self.stage}, phase: {self.phase!r:.40})")


def choose_saver(peers: Iterable[Peer], step: int) -> Peer | None:
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
class Eviction(Record):
    """A peer that the leader evicted. The key is bound to a lease that is never renewed: its expiry ends the pause.

    Args:
        times: evictions in a row, including this one.
    """

    times: int

    def __post_init__(self) -> None:
        if self.times < 1:
            raise ValueError(f"Eviction.times is no count of evictions (got: {self.times})")
