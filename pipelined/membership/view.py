"""The members of the swarm and its committed step, as this process last read them from the directory.

The directory is the only source of both. `MembershipView` follows it; `Registration` is this process's own entry, bound
to a lease. A process that is cut off from the directory (`cut_off`) goes on computing, and commits nothing.
"""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence, Set
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple, TypeVar

from pipelined.aio.clock import Clock
from pipelined.aio.events import warn
from pipelined.aio.notifier import Notifier
from pipelined.directory import Change, CutOff, Directory, Entry, FellBehind, Prefixes, View
from pipelined.directory.record import Record
from pipelined.membership.census import Census
from pipelined.membership.records import (
    CAME,
    EVICTED,
    LEADER,
    OBSERVERS,
    PEERS,
    STAGES,
    TRAINERS,
    Evicted,
    LeaderRecord,
    Observer,
    Peer,
    Phase,
    Trainer,
    stage_folder,
)
from pipelined.state.versions import SAVED, Saved
from pipelined.swarm.records import EVALUATED, HEAD, LOST, TOOK, Evaluated, Head, Lost, Took, took_key


class Came(NamedTuple):
    """A new peer that waits for its assignment to a stage.

    Args:
        address: of its endpoint.
        revision: of the record with which it announced itself.
    """

    address: str
    revision: int


Named = TypeVar("Named", Peer, Trainer, Observer, Saved, Came, Took, int)
MOST_NAMES = 4096
"""Evicted names that a view keeps."""
WORKING = (Phase.SERVING, Phase.DRAINING)
RETRY_S = 0.2
"""Seconds between two attempts of a process that is cut off from the directory."""


class NoLongerValid(Exception):
    """A condition that work depended on no longer holds: the member is gone, or the step is past."""


class MembershipView:
    """The members and the head as last read from the directory.

    Attributes:
        head: the committed step; None before the first one. If its record is deleted or cannot be read, the previous
            head stays, at the revision of the new record, so that a leader can write the next step over it.
        evaluated: the last loss on validation data; None before the first one.
        head_revision, leader_revision, evaluated_revision: of those keys, for transactions; 0: no such key.
        came: by name, the new peers that wait for an assignment to a stage.
        peers, trainers, observers: by name; only the peers that this process follows.
        saved: by name, the steps that peers have on disk.
        census: the peers by stage.
        took: by key, the members of the last summed step.
        lost: the stages of which no peer holds the state, as last written by the leader.
        stages: the stages of which this process follows the peers; None: all of them, and all other keys.
        announced: by name, the revision of a peer's last record; 0 for a peer that is gone.
        cut_off: the directory does not reply.
        evictions: by name, a peer's evictions in a row, by the last record; filled only if `stages` is None.
        strange: by key, why a record could not be read.
    """

    def __init__(self, directory: Directory, clock: Clock, stages: Set[int] | None = None):
        self.directory, self._clock, self.stages = directory, clock, stages
        self._followed: Prefixes | None = None
        self.head: Head | None = None
        self.leader: LeaderRecord | None = None
        self.evaluated: Evaluated | None = None
        self.head_revision = self.leader_revision = self.evaluated_revision = 0
        self.revision = 0
        self.came = dict[str, Came]()
        self.lost, self.lost_revision = frozenset[int](), 0
        self._bare: Head | None = None  # the last readable head, without its members
        self.took = dict[str, Took]()
        self.peers, self.trainers = dict[str, Peer](), dict[str, Trainer]()
        self.observers = dict[str, Observer]()
        self.cut_off, self.strange = False, dict[str, str]()
        self.announced = Counter[str]()
        self.saved, self.evictions = dict[str, Saved](), dict[str, int]()
        self._keys = set[str]()
        self.census = Census()
        self._changed = Notifier()
        self._scopes: dict[asyncio.Timeout, Callable[[], bool]] = {}

    async def follow(self) -> None:
        """Follow the directory until cancelled."""
        while True:
            prefixes = _prefixes(self.stages)
            try:
                async with self.while_holds(lambda prefixes=prefixes: _prefixes(self.stages) == prefixes):
                    self._take_view(await self.directory.read(prefixes), prefixes)
                    async for changes in self.directory.watch(prefixes, self.revision):
                        self._take(changes)
            except (FellBehind, NoLongerValid):
                continue
            except CutOff:
                self.cut_off = True
                self._tell()
                await self._clock.sleep(RETRY_S)

    def add(self, stage: int) -> None:
        """Follow the peers of one more stage from now on."""
        if self.stages is not None:
            self.stages = self.stages | {stage}
            self._tell()

    async def turn_to(self, stages: Set[int]) -> None:
        """Follow the peers of exactly these stages, unless this view follows all; returns when they are known."""
        if self.stages is None:
            return
        self.stages = frozenset(stages)
        self._tell()
        await self.wait_for(lambda: self._followed == _prefixes(self.stages))

    def serving(self, stage: int) -> list[Peer]:
        """The peers of a stage that accept work, by name."""
        return [peer for peer in self.census.at(stage) if peer.phase in WORKING]

    def joining(self, stage: int) -> list[Peer]:
        """The peers that are fetching the state of a stage, by name."""
        return [peer for peer in self.census.at(stage) if peer.phase == Phase.JOINING]

    def holding(self, stage: int) -> list[Peer]:
        """The peers of a stage that have its state: the serving and the leaving ones."""
        return [peer for peer in self.census.at(stage) if peer.phase != Phase.JOINING]

    def is_here(self, who: Peer | Trainer) -> bool:
        """Whether this member is still in the directory, in this incarnation."""
        known = (self.peers if isinstance(who, Peer) else self.trainers).get(who.name)
        return known is not None and known.incarnation == who.incarnation

    def look_again(self) -> None:
        """Wake all tasks that wait for a change, after a change outside the directory."""
        self._tell()

    async def next_change(self, seconds: float = math.inf) -> None:
        """Wait for the next change, at most `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if math.isinf(seconds) else max(0.0, seconds)):
                await self._changed.wait()

    async def wait_for(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds; it is evaluated after every change."""
        while not holds():
            await self._changed.wait()

    @asynccontextmanager
    async def while_holds(self, holds: Callable[[], bool]) -> AsyncIterator[asyncio.Timeout]:
        """Run the block while a condition holds; it is evaluated after every change. The block may set a time-out too.

        Raises:
            NoLongerValid: the condition does not hold, or the time-out has passed; a running block is cancelled first.
        """
        if not holds():
            raise NoLongerValid
        try:
            async with asyncio.timeout(None) as scope:
                self._scopes[scope] = holds
                try:
                    yield scope
                finally:
                    del self._scopes[scope]
        except TimeoutError as error:
            raise NoLongerValid from error

    def _take_view(self, view: View, prefixes: Prefixes) -> None:
        gone = dict.fromkeys(self._keys - view.entries.keys())
        self._followed = prefixes
        self._take([Change(key, entry, view.revision) for key, entry in [*gone.items(), *view.entries.items()]])
        self.revision = view.revision

    def _take(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self.revision = max(self.revision, change.revision)
            (self._keys.discard if change.entry is None else self._keys.add)(change.key)
            self.strange.pop(change.key, None)
            try:
                self.note(change.key, change.entry)
            except ValueError as error:
                self.strange[change.key] = str(error)
                warn("record refused", key=change.key, why=error)
        if self._bare and any(change.key == HEAD or change.key.startswith(TOOK) for change in changes):
            self.head = self._bare.with_members(self.took.values())
        self.cut_off = False
        self._tell()

    def note(self, key: str, entry: Entry | None) -> None:
        """Apply the entry of a key; None: the key was deleted.

        Raises:
            ValueError: the record cannot be read.
        """
        revision = entry.revision if entry else 0
        if key == HEAD:
            self.head_revision = revision
            if entry is not None:
                self._bare = Head.unpack(entry.value)
        elif key.startswith(TOOK):  # an unreadable record is dropped, so that the next commit writes it again
            self._place(self.took, key, None)
            self._place(self.took, key, _read(Took, entry))
        elif key == LOST:
            self.lost_revision = revision
            self.lost = frozenset((entry and Lost.unpack(entry.value).stages) or ())
        elif key == LEADER:  # an unreadable record is None, but its revision is kept, so that it can be overwritten
            self.leader, self.leader_revision = None, revision
            self.leader = _read(LeaderRecord, entry)
        elif key == EVALUATED:
            self.evaluated, self.evaluated_revision = None, revision
            self.evaluated = _read(Evaluated, entry)
        elif key.startswith(CAME):
            self._place(self.came, key.removeprefix(CAME), entry and Came(entry.value.decode(), revision))
            self._note_arrival(key.removeprefix(CAME))
        elif key.startswith(PEERS) and self.stages is None:
            self._note_peer(key.removeprefix(PEERS), entry)
        elif key.startswith(STAGES) and self.stages is not None:
            stage, _, name = key.removeprefix(STAGES).partition("/")
            if entry or (name in self.peers and str(self.peers[name].stage) == stage):  # otherwise it has moved
                self._note_peer(name, entry, stage)
        elif key.startswith(EVICTED):
            self._note_evicted(key.removeprefix(EVICTED), _read(Evicted, entry))
        elif key.startswith(TRAINERS):
            self._place(self.trainers, key.removeprefix(TRAINERS), _read(Trainer, entry))
        elif key.startswith(OBSERVERS):
            self._place(self.observers, key.removeprefix(OBSERVERS), _read(Observer, entry))
        elif key.startswith(SAVED):
            self._place(self.saved, key.removeprefix(SAVED), _read(Saved, entry))

    def _note_peer(self, name: str, entry: Entry | None, stage: str | None = None) -> None:
        """Apply a peer's record.

        Args:
            stage: in the key; None: the key has no stage.
        Raises:
            ValueError: the record names another peer or stage than its key, so the key's deletion would not remove it.
        """
        self.announced.pop(name, None)
        if entry is not None:
            self.announced[name] = entry.revision
        self._note_arrival(name)
        peer = _read(Peer, entry)
        if peer and (peer.name != name or stage not in (None, str(peer.stage))):
            raise ValueError(f"a Peer under another key than its own (name: {peer.name!r:.80}, stage: {peer.stage})")
        self._place(self.peers, name, peer)
        self.census.put(name, peer)

    def _note_arrival(self, name: str) -> None:
        """Note that a new peer has left, or has written its own record after it announced itself."""
        came = self.came.get(name)
        if came is None or self.announced[name] >= came.revision:
            self.census.arrived(name)

    def _note_evicted(self, name: str, evicted: Evicted | None) -> None:
        """Keep the last count of evictions after its record is deleted, for the last `MOST_NAMES` names."""
        if evicted is not None:
            self._place(self.evictions, name, evicted.times)
        if len(self.evictions) > MOST_NAMES:
            del self.evictions[next(iter(self.evictions))]

    def _place(self, known: dict[str, Named], name: str, now: Named | None) -> None:
        known.pop(name, None)
        if now is not None:
            known[name] = now

    def _tell(self) -> None:
        now = asyncio.get_running_loop().time()
        for scope, holds in self._scopes.items():
            if not scope.expired() and not holds():
                scope.reschedule(now)
        self._changed.notify_all()


def _prefixes(stages: Set[int] | None) -> Prefixes:
    """The prefixes that a process follows: everything, or the keys that all peers need and those of some stages."""
    if stages is None:
        return ""
    keys = {key for stage in stages for key in (stage_folder(stage), took_key(stage))}
    return (HEAD, LEADER, LOST, TRAINERS, OBSERVERS, *sorted(keys))


def _read(kind: type[Record], entry: Entry | None) -> Record | None:
    return kind.unpack(entry.value) if entry else None
