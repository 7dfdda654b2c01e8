"""The members of the swarm and the step that stands, as this process last read them from the directory.

Only the directory is believed about either. `MembershipView` follows it; `Registration` is this process's own entry,
kept by a lease. A process cut off from the directory is `cut_off`: it goes on computing, and decides nothing.
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
from pipelined.membership.census import Census
from pipelined.swarm.records import (
    CAME,
    EVALUATED,
    EVICTED,
    HEAD,
    LEADER,
    LOST,
    OBSERVERS,
    PEERS,
    SAVED,
    STAGES,
    TOOK,
    TRAINERS,
    Evaluated,
    Evicted,
    Head,
    LeaderRecord,
    Lost,
    Observer,
    Peer,
    Phase,
    Record,
    Saved,
    Took,
    Trainer,
    stage_folder,
    took_key,
)


class Came(NamedTuple):
    """A peer that is to be told its stage.

    Args:
        address: of its endpoint.
        revision: at which it said so.
    """

    address: str
    revision: int


Named = TypeVar("Named", Peer, Trainer, Observer, Saved, Came, Took, int)
MOST_NAMES = 4096
"""Evicted names that are remembered."""
WORKING = (Phase.SERVING, Phase.DRAINING)
RETRY_S = 0.2
"""Seconds from one attempt of a process cut off from the directory to the next."""


class NoLongerValid(Exception):
    """A condition that work depended on no longer holds: the member is gone, or the step is past."""


class MembershipView:
    """The members and the head as the directory has them.

    Attributes:
        head: the step that stands; None before there is one. A record that is gone or cannot be read leaves the one
            before it, at the revision of the new: so a leader writes the next step over it.
        evaluated: the last loss on validation data; None before there is one.
        head_revision, leader_revision, evaluated_revision: of those keys, to be expected in a transaction; 0 where
            they are not.
        came: by name, what a peer said that is to be told its stage; not of those that know it.
        peers, trainers, observers: by name; peers as far as they are followed.
        saved: what peers have on disk, by name.
        census: where the peers are.
        took: by key, the members of the last step that was summed, as the directory has them.
        lost: the stages whose state no peer holds, as the leader last said.
        stages: those whose peers this process follows; None: all of them, and everything else in the directory.
        announced: by name, the revision at which a peer last said what it is; 0 for one that is gone, and not kept.
        cut_off: the directory does not answer.
        evictions: by name, how often in a row a leader evicted a peer, as the last record of it said; where everything
            is followed.
        strange: why records could not be read, by key.
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
        self._bare: Head | None = None  # the last that could be read, without its members
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
        """Keep up with the directory until cancelled."""
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
        """Follow the peers of these stages and no others, unless it is all; returns when they are known."""
        if self.stages is None:
            return
        self.stages = frozenset(stages)
        self._tell()
        await self.wait_for(lambda: self._followed == _prefixes(self.stages))

    def serving(self, stage: int) -> list[Peer]:
        """The peers of a stage that take work, by name."""
        return [peer for peer in self.census.at(stage) if peer.phase in WORKING]

    def joining(self, stage: int) -> list[Peer]:
        """The peers that are on their way to a stage's state, by name."""
        return [peer for peer in self.census.at(stage) if peer.phase == Phase.JOINING]

    def holding(self, stage: int) -> list[Peer]:
        """The peers of a stage that have its state: those that serve and those about to leave."""
        return [peer for peer in self.census.at(stage) if peer.phase != Phase.JOINING]

    def is_here(self, who: Peer | Trainer) -> bool:
        """Whether this member is still in the directory, in this incarnation."""
        known = (self.peers if isinstance(who, Peer) else self.trainers).get(who.name)
        return known is not None and known.incarnation == who.incarnation

    def look_again(self) -> None:
        """Wake all that wait for a change: something outside the directory has changed."""
        self._tell()

    async def next_change(self, seconds: float = math.inf) -> None:
        """Wait for the next change, at most this many seconds."""
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
            NoLongerValid: it no longer holds, or the time is up.
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
        """Take in what the directory has under a key; None: it has nothing there any more.

        Raises:
            ValueError: that cannot be read.
        """
        revision = entry.revision if entry else 0
        if key == HEAD:
            self.head_revision = revision
            if entry is not None:
                self._bare = Head.unpack(entry.value)
        elif key.startswith(TOOK):  # what cannot be read is not kept either: so the next commit writes it anew
            self._place(self.took, key, None)
            self._place(self.took, key, _read(Took, entry))
        elif key == LOST:
            self.lost_revision = revision
            self.lost = frozenset((entry and Lost.unpack(entry.value).stages) or ())
        elif key == LEADER:  # what cannot be read is none, at a revision: so it can be written over
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
            if entry or (name in self.peers and str(self.peers[name].stage) == stage):  # else it has moved
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
        """Raises ValueError: it is no record of this peer, or of one of this stage; its key would not say when it goes.

        Args:
            stage: that the key names; None: it names none.
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
        """A newcomer is on its way no longer when it has gone, or has said what it is after it came."""
        came = self.came.get(name)
        if came is None or self.announced[name] >= came.revision:
            self.census.arrived(name)

    def _note_evicted(self, name: str, evicted: Evicted | None) -> None:
        """What the last record said stays known when the pause is over, for the last `MOST_NAMES` names."""
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
    """What a process follows in the directory: everything, or what all peers need and some stages."""
    if stages is None:
        return ""
    keys = {key for stage in stages for key in (stage_folder(stage), took_key(stage))}
    return (HEAD, LEADER, LOST, TRAINERS, OBSERVERS, *sorted(keys))


def _read(kind: type[Record], entry: Entry | None) -> Record | None:
    return kind.unpack(entry.value) if entry else None
