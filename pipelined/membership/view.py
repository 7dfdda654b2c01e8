"""The members of a system as this process last read them from the directory, which is their only source.

`MembershipView` follows the directory. A process that is cut off from it (`cut_off`) continues to compute, and commits
nothing. A subclass adds the records of its own system.
"""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence, Set
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Generic, TypeVar

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
    Eviction,
    LeaderRecord,
    Observer,
    Peer,
    Phase,
    TrainerRecord,
    stage_folder,
)

R = TypeVar("R", bound=Record)
T = TypeVar("T")
Apply = Callable[[str, Entry | None], None]
"""Applies the entry of a key, given the rest of the key after its prefix; None: the key was deleted.

Raises ValueError: the record cannot be read.
"""
MOST_NAMES = 4096
"""Eviction names that a view keeps."""
WORKING = (Phase.SERVING, Phase.DRAINING)
RETRY_S = 0.2
"""Seconds between two attempts of a process that is cut off from the directory."""


class NoLongerValid(Exception):
    """A condition that work depended on no longer holds: the member is gone, or the step is past."""


class Table(dict[str, R]):
    """The records under one prefix, by name.

    Args:
        keeps: whether a record that cannot be read leaves the former one in place.
    """

    def __init__(self, kind: type[R], keeps: bool = True):
        super().__init__()
        self._kind, self._keeps = kind, keeps

    def apply(self, name: str, entry: Entry | None) -> None:
        """See `Apply`."""
        if not self._keeps:
            self.pop(name, None)
        record = self._kind.unpack(entry.value) if entry else None
        self.pop(name, None)
        if record is not None:
            self[name] = record


class Single(Generic[R]):
    """The record under one key.

    Attributes:
        record: None: there is none, or it cannot be read.
        revision: of the key, also of a record that cannot be read, so that it can be overwritten; 0: no such key.
    """

    def __init__(self, kind: type[R]):
        self._kind = kind
        self.record: R | None = None
        self.revision = 0

    def apply(self, name: str, entry: Entry | None) -> None:
        """See `Apply`."""
        self.record, self.revision = None, entry.revision if entry else 0
        self.record = self._kind.unpack(entry.value) if entry else None


class Evictions(dict[str, int]):
    """Evictions in a row, by name; the last `MOST_NAMES` names are kept after their records are deleted."""

    def apply(self, name: str, entry: Entry | None) -> None:
        """See `Apply`."""
        if entry is not None:
            times = Eviction.unpack(entry.value).times
            self.pop(name, None)
            self[name] = times
        if len(self) > MOST_NAMES:
            del self[next(iter(self))]


class MembershipView:
    """The members as last read from the directory.

    Attributes:
        census: the peers by stage.
        peers, trainers, observers: by name; only the peers that this process follows.
        record_revisions: by name, the revision of a peer's last record; 0 for a peer that is gone.
        newcomers: by name, the new peers that wait for an assignment to a stage.
        evictions: by name; filled only if `stages` is None.
        revision: of the directory when it was last read.
        cut_off: whether the last attempt to read the directory failed.
        unreadable: why a record cannot be read, by key.
        stages: the stages of which the peers are followed; None: all, and all other keys.
    """

    def __init__(self, directory: Directory, clock: Clock, stages: frozenset[int] | None = None):
        self.directory, self._clock, self.stages = directory, clock, stages
        self._known: frozenset[int] | None = None  # the followed stages of which the records are here
        self.revision = 0
        self.cut_off, self.unreadable = False, dict[str, str]()
        self.census = Census()
        self.peers, self.newcomers = self.census.peers, self.census.newcomers
        self.record_revisions = self.census.record_revisions
        self.trainers, self.observers = Table(TrainerRecord), Table(Observer)
        self.evictions, self._leader = Evictions(), Single(LeaderRecord)
        self._tables: dict[str, Apply] = {
            LEADER: self._leader.apply,
            CAME: self.census.apply_newcomer,
            TRAINERS: self.trainers.apply,
            OBSERVERS: self.observers.apply,
            EVICTED: self.evictions.apply,
        } | ({PEERS: self.census.apply} if stages is None else {STAGES: self.census.apply_at_stage})
        self._keys = set[str]()
        self._changed = Notifier()
        self._scopes: dict[asyncio.Timeout, Callable[[], bool]] = {}
        self._change_queues = list[tuple[Prefixes, deque[Change]]]()

    @property
    def leader(self) -> LeaderRecord | None:
        """The trainer that leads; None: no trainer leads, or the record cannot be read."""
        return self._leader.record

    @property
    def leader_revision(self) -> int:
        """The revision of the leader's key: the leader's term. 0: no such key."""
        return self._leader.revision

    async def follow(self) -> None:
        """Follow the directory until cancelled."""
        while True:
            try:
                await self._follow(self.stages)
            except (FellBehind, NoLongerValid):
                continue
            except CutOff:
                self.cut_off = True
                self._recheck()
                await self._clock.sleep(RETRY_S)

    async def _follow(self, stages: frozenset[int] | None) -> None:
        """Raises NoLongerValid: this view follows other stages now. FellBehind, CutOff: as `Directory.watch`."""
        prefixes = "" if stages is None else tuple(sorted(self._keys_of(stages)))
        async with self.while_holds(lambda: self.stages == stages):
            self.load(await self.directory.read(prefixes))
            self._known = stages
            self._recheck()
            async for changes in self.directory.watch(prefixes, self.revision):
                self.apply_changes(changes)

    def add(self, stage: int) -> None:
        """Follow the peers of one more stage from now on."""
        if self.stages is not None:
            self.stages = self.stages | {stage}
            self._recheck()

    async def follow_stages(self, stages: Set[int]) -> None:
        """Follow the peers of exactly these stages, unless this view follows all; returns when they are known."""
        if self.stages is None:
            return
        self.stages = frozenset(stages)
        self._recheck()
        await self.wait_for(lambda: self._known == self.stages)

    def serving(self, stage: int) -> list[Peer]:
        """The peers of a stage that accept work, by name."""
        return [peer for peer in self.census.at(stage) if peer.phase in WORKING]

    def joining(self, stage: int) -> list[Peer]:
        """The peers that are fetching the state of a stage, by name."""
        return [peer for peer in self.census.at(stage) if peer.phase == Phase.JOINING]

    def holding(self, stage: int) -> list[Peer]:
        """The peers of a stage that have its state: the serving and the leaving ones."""
        return [peer for peer in self.census.at(stage) if peer.phase != Phase.JOINING]

    def is_here(self, member: Peer | TrainerRecord) -> bool:
        """Whether this member is still in the directory, in this incarnation."""
        known = (self.peers if isinstance(member, Peer) else self.trainers).get(member.name)
        return known is not None and known.incarnation == member.incarnation

    def notify(self) -> None:
        """Wake all tasks that wait for a change, after a change outside the directory."""
        self._recheck()

    async def next_change(self, seconds: float = math.inf) -> None:
        """Wait for the next change, at most `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if math.isinf(seconds) else max(0.0, seconds)):
                await self._changed.wait()

    async def wait_for(self, find: Callable[[], T | None]) -> T:
        """Wait until there is a true value, and return it; `find` is called after every change."""
        while not (found := find()):
            await self._changed.wait()
        return found

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

    def apply(self, key: str, entry: Entry | None) -> None:
        """Apply the entry of a key; None: the key was deleted. Keys of other systems are ignored.

        Raises:
            ValueError: the record cannot be read.
        """
        folder, slash, name = key.partition("/")
        if (apply := self._tables.get(folder + slash)) is not None:
            apply(name, entry)

    def _keys_of(self, stages: Iterable[int]) -> set[str]:
        """The prefixes that a process follows of which only these stages concern it."""
        return {LEADER, TRAINERS, OBSERVERS, *map(stage_folder, stages)}

    def load(self, view: View) -> None:
        """Replace everything by these entries."""
        gone = dict.fromkeys(self._keys - view.entries.keys())
        self.apply_changes([Change(key, entry, view.revision) for key, entry in [*gone.items(), *view.entries.items()]])
        self.revision = view.revision

    @contextmanager
    def change_queue(self, prefixes: Prefixes) -> Iterator[deque[Change]]:
        """A queue of every change under these prefixes from now on, in order; the block removes what it has read.

        A view wakes its waiters once for several changes; the queue has each of them.
        """
        entry = prefixes, deque[Change]()
        self._change_queues.append(entry)
        try:
            yield entry[1]
        finally:
            self._change_queues = [each for each in self._change_queues if each is not entry]

    def apply_changes(self, changes: Sequence[Change]) -> None:
        """Apply changes of the directory, in order; a record that cannot be read is noted in `unreadable`."""
        for prefixes, queue in self._change_queues:
            queue.extend(change for change in changes if change.key.startswith(prefixes))
        for change in changes:
            self.revision = max(self.revision, change.revision)
            (self._keys.discard if change.entry is None else self._keys.add)(change.key)
            known = self.unreadable.pop(change.key, None)
            try:
                self.apply(change.key, change.entry)
            except ValueError as error:
                self.unreadable[change.key] = str(error)
                if known != str(error):
                    warn("record refused", key=change.key, why=error)
        self.cut_off = False
        self._recheck()

    def _recheck(self) -> None:
        now = asyncio.get_running_loop().time()
        for scope, holds in self._scopes.items():
            if not scope.expired() and not holds():
                scope.reschedule(now)
        self._changed.notify_all()
