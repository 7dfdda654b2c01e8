"""Who is in the swarm and which step stands, as this process last heard from the directory.

The one rule: nobody else is believed about either. `Roster` follows; `Standing` is this process's own place in it, kept
by a lease. A process cut off from the directory knows that it is (`cut_off`), goes on computing, and decides nothing.
"""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from pipelined.clock import Clock
from pipelined.events import warn
from pipelined.swarm.bell import Bell
from pipelined.swarm.directory import Change, CutOff, Directory, Entry, FellBehind, View
from pipelined.swarm.records import (
    CAME,
    CONDUCTOR,
    EVALUATED,
    HEAD,
    OBSERVERS,
    PEERS,
    SAVED,
    TRAINERS,
    Conductor,
    Evaluated,
    Head,
    Observer,
    Peer,
    Phase,
    Record,
    Saved,
    Trainer,
)

Named = TypeVar("Named", Peer, Trainer, Observer, Saved, int)
WORKING = (Phase.SERVING, Phase.PARTING)
RETRY_S = 0.2
"""How long a process cut off from the directory waits before it asks again."""


class Ended(Exception):
    """What was being done makes no sense any more: whom it was done with is gone, or the step is past."""


class Roster:
    """The swarm as the directory has it.

    Attributes:
        head: the step that stands; None before there is one. A record that is gone or cannot be read leaves the one
            before it, at the revision of the new: so a leader writes the next step over it.
        evaluated: the last loss on validation data; None before there is one.
        head_revision, conductor_revision, evaluated_revision: of those keys, to be expected in a transaction; 0 where
            they are not.
        came: by name, the revision at which a peer said that it comes; not of those that were told their stage.
        peers, trainers, observers: by name.
        saved: what peers have on disk, by name.
        announced: by name, the revision at which a peer last said what it is; 0 for one that is gone, and not kept.
        cut_off: the directory does not answer.
        strange: records that could not be read, by key: whoever wrote them is not what we are.
    """

    def __init__(self, directory: Directory, clock: Clock):
        self.directory, self._clock = directory, clock
        self.head: Head | None = None
        self.conductor: Conductor | None = None
        self.evaluated: Evaluated | None = None
        self.head_revision = self.conductor_revision = self.evaluated_revision = 0
        self.revision = 0
        self.came = dict[str, int]()
        self.peers, self.trainers = dict[str, Peer](), dict[str, Trainer]()
        self.observers = dict[str, Observer]()
        self.cut_off, self.strange = False, dict[str, str]()
        self.announced = Counter[str]()
        self.saved = dict[str, Saved]()
        self._keys = set[str]()
        self._by_stage: dict[int, list[Peer]] | None = None
        self._changed = Bell()
        self._scopes: dict[asyncio.Timeout, Callable[[], bool]] = {}

    async def follow(self) -> None:
        """Keep up with the directory until cancelled."""
        while True:
            try:
                self._take_view(await self.directory.read())
                async for changes in self.directory.watch("", self.revision):
                    self._take(changes)
            except FellBehind:
                continue
            except CutOff:
                self.cut_off = True
                self._tell()
                await self._clock.sleep(RETRY_S)

    def serving(self, stage: int) -> list[Peer]:
        """The peers of a stage that take work, by name."""
        return [peer for peer in self._at(stage) if peer.phase in WORKING]

    def joining(self, stage: int) -> list[Peer]:
        """The peers that are on their way to a stage's state, by name."""
        return [peer for peer in self._at(stage) if peer.phase == Phase.JOINING]

    def holding(self, stage: int) -> list[Peer]:
        """The peers of a stage that have its state: those that serve and those about to leave."""
        return [peer for peer in self._at(stage) if peer.phase != Phase.JOINING]

    def is_here(self, who: Peer | Trainer) -> bool:
        """Whether this member, in this incarnation, still is one."""
        known = (self.peers if isinstance(who, Peer) else self.trainers).get(who.name)
        return known is not None and known.incarnation == who.incarnation

    def look_again(self) -> None:
        """Wake everybody who waits for news: something else has changed."""
        self._tell()

    async def next_change(self, seconds: float = math.inf) -> None:
        """Wait for news, so many seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if math.isinf(seconds) else max(0.0, seconds)):
                await self._changed.wait()

    async def wait_for(self, holds: Callable[[], bool]) -> None:
        """Wait until this holds; it is looked at after every change."""
        while not holds():
            await self._changed.wait()

    @asynccontextmanager
    async def as_long_as(self, holds: Callable[[], bool]) -> AsyncIterator[asyncio.Timeout]:
        """Run the block for as long as this holds; it is looked at after every change. A time-out may be set as well.

        Raises:
            Ended: it holds no longer, or the time is up.
        """
        if not holds():
            raise Ended
        try:
            async with asyncio.timeout(None) as scope:
                self._scopes[scope] = holds
                try:
                    yield scope
                finally:
                    del self._scopes[scope]
        except TimeoutError as error:
            raise Ended from error

    def _at(self, stage: int) -> Sequence[Peer]:
        """Whoever is at a stage, by name. Cost: all peers are put in order once for all who ask until one changes."""
        if self._by_stage is None:
            self._by_stage = {}
            for _, peer in sorted(self.peers.items()):
                self._by_stage.setdefault(peer.stage, []).append(peer)
        return self._by_stage.get(stage, ())

    def _take_view(self, view: View) -> None:
        gone = dict.fromkeys(self._keys - view.entries.keys())
        self._take([Change(key, entry, view.revision) for key, entry in [*gone.items(), *view.entries.items()]])
        self.revision = view.revision

    def _take(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self.revision = max(self.revision, change.revision)
            (self._keys.discard if change.entry is None else self._keys.add)(change.key)
            self.strange.pop(change.key, None)
            try:
                self._note(change.key, change.entry)
            except ValueError as error:
                self.strange[change.key] = str(error)
                warn("record refused", key=change.key, why=error)
        self.cut_off = False
        self._tell()

    def _note(self, key: str, entry: Entry | None) -> None:
        revision = entry.revision if entry else 0
        if key == HEAD:
            self.head_revision = revision
            self.head = _read(Head, entry) or self.head
        elif key == CONDUCTOR:  # what cannot be read is none, at a revision: so it can be written over
            self.conductor, self.conductor_revision = None, revision
            self.conductor = _read(Conductor, entry)
        elif key == EVALUATED:
            self.evaluated, self.evaluated_revision = None, revision
            self.evaluated = _read(Evaluated, entry)
        elif key.startswith(CAME):
            self._place(self.came, key.removeprefix(CAME), revision or None)
        elif key.startswith(PEERS):
            name, self._by_stage = key.removeprefix(PEERS), None
            self.announced.pop(name, None)
            if entry is not None:
                self.announced[name] = revision
            self._place(self.peers, name, _read(Peer, entry))
        elif key.startswith(TRAINERS):
            self._place(self.trainers, key.removeprefix(TRAINERS), _read(Trainer, entry))
        elif key.startswith(OBSERVERS):
            self._place(self.observers, key.removeprefix(OBSERVERS), _read(Observer, entry))
        elif key.startswith(SAVED):
            self._place(self.saved, key.removeprefix(SAVED), _read(Saved, entry))

    def _place(self, known: dict[str, Named], name: str, now: Named | None) -> None:
        known.pop(name, None)
        if now is not None:
            known[name] = now

    def _tell(self) -> None:
        now = asyncio.get_running_loop().time()
        for scope, holds in self._scopes.items():
            if not scope.expired() and not holds():
                scope.reschedule(now)
        self._changed.ring()


def _read(kind: type[Record], entry: Entry | None) -> Record | None:
    return kind.unpack(entry.value) if entry else None
