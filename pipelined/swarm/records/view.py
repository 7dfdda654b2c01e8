"""The members of a swarm and its committed step, as this process last read them from the directory."""

from collections.abc import Iterable, Set

from pipelined.aio.clock import Clock
from pipelined.membership.directory import Directory, Entry, Prefixes
from pipelined.membership.view import ApplyEntry, MembershipView, Single, Table
from pipelined.state.stages.versions import SAVED, SavedStage, SavedStages, Version, undamaged_stages
from pipelined.swarm.records.members import (
    EVICTED,
    LEADER,
    NEWCOMERS,
    OBSERVERS,
    PEERS,
    STAGES,
    TRAINERS,
    WORKING,
    Census,
    EvictionRecord,
    LeaderRecord,
    ObserverRecord,
    PeerRecord,
    Phase,
    TrainerRecord,
    stage_folder,
)
from pipelined.swarm.records.steps import (
    EVALUATED,
    HEAD,
    LOST,
    STEP_MEMBERS,
    Evaluation,
    Head,
    LostStages,
    StepMembers,
    members_key,
)
from pipelined.swarm.rules import OtherModel

MAX_NAMES = 4096
"""Eviction names that a view keeps."""


class Evictions(dict[str, int]):
    """Evictions in a row, by name; the last `MAX_NAMES` names are kept after their records are deleted."""

    def apply(self, name: str, entry: Entry | None) -> None:
        """See `ApplyEntry`."""
        if entry is not None:
            times = EvictionRecord.unpack(entry.value).times
            self.pop(name, None)
            self[name] = times
        if len(self) > MAX_NAMES:
            del self[next(iter(self))]


class SwarmView(MembershipView):
    """The members, the committed step, and what was saved and measured.

    Attributes:
        census: the peers by stage.
        peers, trainers, observers: by name; only the peers that this process follows.
        newcomers: by name, the new peers that wait for an assignment to a stage.
        stages: the stages of which the peers are followed; None: all, and all other keys.
        evictions: by name; filled only if `stages` is None.
        saved: by name, the steps that peers have on disk; filled only if `stages` is None.
        head_revision: of the head's key, also of a record that cannot be read, so that the leader can write the next
            step over it; 0: no such key.
        step_members: the members of the last summed step, by the rest of their keys.
    """

    def __init__(self, directory: Directory, clock: Clock, stages: frozenset[int] | None = None):
        self.stages = stages
        self.census = Census()
        self.peers, self.newcomers = self.census.peers, self.census.newcomers
        self.trainers, self.observers = Table(TrainerRecord), Table(ObserverRecord)
        self.evictions = Evictions()
        self.saved = Table(SavedStages)
        self.step_members = Table(StepMembers, keeps_last_valid=False)
        self._leader, self._evaluated, self._lost = Single(LeaderRecord), Single(Evaluation), Single(LostStages)
        self.head_revision = 0
        self._head: Head | None = None  # without its members
        self._head_with_members: Head | None = None  # None: to be joined again
        peers: dict[str, ApplyEntry] = (
            {PEERS: self.census.apply} if stages is None else {STAGES: self.census.apply_at_stage}
        )
        super().__init__(
            directory,
            clock,
            tables=peers
            | {
                LEADER: self._leader.apply,
                NEWCOMERS: self.census.apply_newcomer,
                TRAINERS: self.trainers.apply,
                OBSERVERS: self.observers.apply,
                EVICTED: self.evictions.apply,
                HEAD: self._apply_head,
                STEP_MEMBERS: self._apply_members,
                LOST: self._lost.apply,
                SAVED: self.saved.apply,
                EVALUATED: self._evaluated.apply,
            },
            members={PeerRecord: self.peers, TrainerRecord: self.trainers},
            prefixes="" if stages is None else _prefixes(stages),
        )

    def add(self, stage: int) -> None:
        """Follow the peers of one more stage from now on."""
        if self.stages is not None:
            self.stages |= {stage}
            self.follow_only(_prefixes(self.stages))

    async def follow_stages(self, stages: Set[int]) -> None:
        """Follow the peers of exactly these stages, unless this view follows all; returns when they are known."""
        if self.stages is not None:
            self.stages = frozenset(stages)
            self.follow_only(_prefixes(stages))
            await self.wait_for(lambda: self.is_loaded)

    @property
    def leader(self) -> LeaderRecord | None:
        """The trainer that leads; None: no trainer leads, or the record cannot be read."""
        return self._leader.record

    @property
    def leader_revision(self) -> int:
        """The revision of the leader's key: the leader's term. 0: no such key."""
        return self._leader.revision

    def is_leader(self, record: LeaderRecord) -> bool:
        """Whether the trainer of this record still leads."""
        return self.leader == record

    def serving(self, stage: int) -> list[PeerRecord]:
        """The peers of a stage that accept work, by name."""
        return [peer for peer in self.census.stage_peers(stage) if peer.phase in WORKING]

    def joining(self, stage: int) -> list[PeerRecord]:
        """The peers that are fetching the state of a stage, by name."""
        return [peer for peer in self.census.stage_peers(stage) if peer.phase == Phase.JOINING]

    def peers_with(self, stage: int) -> list[PeerRecord]:
        """The peers of a stage that have its state: the serving and the leaving ones."""
        return [peer for peer in self.census.stage_peers(stage) if peer.phase != Phase.JOINING]

    def record_revision(self, name: str) -> int:
        """The revision of a peer's last record; 0: it has none."""
        return self.census.record_revisions[name]

    @property
    def head(self) -> Head | None:
        """The committed step; None before the first one.

        If its record is deleted or cannot be read, this is still the previous one.
        """
        if self._head_with_members is None and self._head is not None:
            self._head_with_members = self._head.with_members(self.step_members.values())
        return self._head_with_members

    def require_head(self) -> Head:
        """The head, for code that runs only after the first one.

        Raises:
            RuntimeError: no head was read yet.
        """
        head = self.head
        if head is None:
            raise RuntimeError("no committed step was read yet; wait for the head first")
        return head

    @property
    def saved_stages(self) -> list[SavedStage]:
        """What the peers have on disk, but for what any of them found damaged."""
        return undamaged_stages(self.saved.values())

    @property
    def version(self) -> Version:
        """The committed version. Raises RuntimeError: no head was read yet."""
        return self.require_head().version

    async def wait_for_model(self, model: str) -> Head:
        """Wait until there is a committed step, and return it.

        Raises:
            OtherModel: it is of another model than the one with this digest.
        """
        head = await self.wait_for(lambda: self.head)
        if head.model != model:
            raise OtherModel(model, head.model)
        return head

    @property
    def evaluation(self) -> Evaluation | None:
        """The last loss on validation data; None before the first one."""
        return self._evaluated.record

    @property
    def evaluated_revision(self) -> int:
        """The revision of its key, for transactions; 0: no such key."""
        return self._evaluated.revision

    @property
    def lost_stages(self) -> frozenset[int]:
        """The stages of which no peer holds the state, as last written by the leader."""
        return frozenset(self._lost.record.stages if self._lost.record else ())

    @property
    def lost_revision(self) -> int:
        """The revision of its key, for transactions; 0: no such key."""
        return self._lost.revision

    def _apply_head(self, name: str, entry: Entry | None) -> None:
        self.head_revision = entry.revision if entry else 0
        if entry is not None:
            self._head = Head.unpack(entry.value)
            self._head_with_members = None

    def _apply_members(self, name: str, entry: Entry | None) -> None:
        self._head_with_members = None
        self.step_members.apply(name, entry)


def _prefixes(stages: Iterable[int]) -> Prefixes:
    """The prefixes that a process follows of which only these stages concern it."""
    prefixes = {LEADER, TRAINERS, OBSERVERS, HEAD, LOST, *map(stage_folder, stages), *map(members_key, stages)}
    return tuple(sorted(prefixes))
