"""The records of a system's members as this process last read them from the directory, which is their only source.

`MembershipView` follows the directory. Each system gives it a table for each prefix of its keys. A process that is cut
off from the directory (`cut_off`) continues to compute, and commits nothing.
"""

import asyncio
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Generic, Protocol, TypeVar

from pipelined.aio.clock import Clock
from pipelined.aio.tasks import Notifier
from pipelined.membership.directory import Change, Conflict, CutOff, Directory, Entry, FellBehind, Prefixes, Snapshot
from pipelined.membership.record import Record
from pipelined.process.reporting.events import warn

R = TypeVar("R", bound=Record)
T = TypeVar("T")
ApplyEntry = Callable[[str, Entry | None], None]
"""Applies the entry of a key, given the rest of the key after its prefix; None: the key was deleted.

Raises ValueError: the record cannot be read.
"""
RETRY_S = 0.2
"""Seconds between two attempts of a process that is cut off from the directory."""


class Member(Protocol):
    """The record of a member, of any kind.

    Attributes:
        name: unique among the members of its kind.
        address: of its endpoint.
        incarnation: number of the lease that the record is bound to, so a newer one is always greater.
    """

    @property
    def name(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def incarnation(self) -> int: ...


class NoLongerValid(Exception):
    """A condition that work depended on no longer holds, such as that a step is open, or its time is up."""


class Table(dict[str, R]):
    """The records under one prefix, by name.

    Args:
        keeps_last_valid: whether a record that cannot be read leaves the former one in place.

    Attributes:
        revisions: of the keys, also of records that cannot be read, for transactions; 0: no such key.
    """

    def __init__(self, kind: type[R], keeps_last_valid: bool = True):
        super().__init__()
        self._kind, self._keeps_last_valid = kind, keeps_last_valid
        self.revisions = Counter[str]()

    def apply(self, name: str, entry: Entry | None) -> None:
        """See `ApplyEntry`."""
        if entry is None:
            self.revisions.pop(name, None)
        else:
            self.revisions[name] = entry.revision
        if not self._keeps_last_valid:
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
        """See `ApplyEntry`."""
        self.record = None
        self.revision = entry.revision if entry else 0
        self.record = self._kind.unpack(entry.value) if entry else None


class MembershipView:
    """The records of one system as last read from the directory.

    Args:
        tables: applies the entries of keys, by the keys' first part with its slash ("peers/"), or by a whole key.
        members: by kind of record, the members by name, which the tables keep up to date.
        prefixes: of the keys that are followed; "": all.

    Attributes:
        revision: of the directory when it was last read.
        cut_off: whether the last attempt to read the directory failed.
        unreadable: why a record cannot be read, by key.
        prefixes: see above.
    """

    def __init__(
        self,
        directory: Directory,
        clock: Clock,
        *,
        tables: Mapping[str, ApplyEntry],
        members: Mapping[type, Mapping[str, Member]],
        prefixes: Prefixes = "",
    ):
        self.directory, self._clock, self.prefixes = directory, clock, prefixes
        self._tables, self._members = tables, members
        self._loaded_prefixes: Prefixes | None = None  # the followed prefixes of which the records are here
        self.revision = 0
        self.cut_off = False
        self.unreadable = dict[str, str]()
        self._keys = set[str]()
        self._changed = Notifier()
        self._scopes: dict[asyncio.Timeout, Callable[[], bool]] = {}
        self._change_queues = list[tuple[Prefixes, deque[Change]]]()

    async def follow(self, raised: tuple[type[CutOff], ...] = ()) -> None:
        """Follow the directory until cancelled. Raises the errors in `raised`; after any other it reads again."""
        while True:
            try:
                await self._follow(self.prefixes)
            except (FellBehind, NoLongerValid):
                continue
            except raised:
                raise
            except CutOff:
                self.cut_off = True
                self._recheck()
                await self._clock.sleep(RETRY_S)

    async def _follow(self, prefixes: Prefixes) -> None:
        """Raises NoLongerValid: this view follows other keys now. FellBehind, CutOff: as `Directory.watch`."""
        async with self.while_holds(lambda: self.prefixes == prefixes):
            self.load(await self.directory.read(prefixes))
            self._loaded_prefixes = prefixes
            self._recheck()
            async for changes in self.directory.watch(prefixes, self.revision):
                self.apply_changes(changes)

    async def write_unless_changed(self, expect: Mapping[str, int], entries: Mapping[str, bytes]) -> Conflict | None:
        """Write entries while these keys are at these revisions; retries while the directory is cut off.

        Returns: None: this attempt wrote them; else what has changed, maybe by an earlier one without a reply.
        """
        while True:
            try:
                await self.directory.transact(expect, entries)
                return None
            except Conflict as conflict:
                return conflict
            except CutOff as error:
                warn("directory cut off", why=error)
                await self._clock.sleep(RETRY_S)

    def follow_only(self, prefixes: Prefixes) -> None:
        """Follow the keys with these prefixes from now on; `is_loaded` shows when their records are here."""
        self.prefixes = prefixes
        self._recheck()

    @property
    def is_loaded(self) -> bool:
        """Whether the records of all followed prefixes are here."""
        return self._loaded_prefixes == self.prefixes

    def is_present(self, member: Member) -> bool:
        """Whether this member is still in the directory, in this incarnation."""
        listed = self._members[type(member)].get(member.name)
        return listed is not None and listed.incarnation == member.incarnation

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
        while not (value := find()):
            await self._changed.wait()
        return value

    @asynccontextmanager
    async def while_holds(self, condition: Callable[[], bool]) -> AsyncIterator[asyncio.Timeout]:
        """Run the block while a condition holds; it is evaluated after every change. The block may set a time-out too.

        Raises:
            NoLongerValid: the condition does not hold, or the time-out has passed; a running block is cancelled first.
        """
        if not condition():
            raise NoLongerValid
        try:
            async with asyncio.timeout(None) as scope:
                self._scopes[scope] = condition
                try:
                    yield scope
                finally:
                    del self._scopes[scope]
        except TimeoutError as error:
            if not scope.expired():  # it is an error of the block
                raise
            raise NoLongerValid from error

    def apply(self, key: str, entry: Entry | None) -> None:
        """Apply the entry of a key; None: the key was deleted. Keys of other systems are ignored.

        Raises:
            ValueError: the record cannot be read.
        """
        folder, slash, name = key.partition("/")
        if (apply := self._tables.get(folder + slash)) is not None:
            apply(name, entry)

    def load(self, snapshot: Snapshot) -> None:
        """Replace everything by these entries."""
        entries = dict.fromkeys(self._keys - snapshot.entries.keys()) | dict(snapshot.entries)
        self.apply_changes([Change(key, entry, snapshot.revision) for key, entry in entries.items()])
        self.revision = snapshot.revision

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
            self._change_queues = [queue for queue in self._change_queues if queue is not entry]

    def apply_changes(self, changes: Sequence[Change]) -> None:
        """Apply changes of the directory, in order; a record that cannot be read is noted in `unreadable`."""
        for prefixes, queue in self._change_queues:
            queue.extend(change for change in changes if change.key.startswith(prefixes))
        for change in changes:
            self.revision = max(self.revision, change.revision)
            (self._keys.discard if change.entry is None else self._keys.add)(change.key)
            last_error = self.unreadable.pop(change.key, None)
            try:
                self.apply(change.key, change.entry)
            except ValueError as error:
                self.unreadable[change.key] = str(error)
                if last_error != str(error):
                    warn("record refused", key=change.key, why=error)
        self.cut_off = False
        self._recheck()

    def _recheck(self) -> None:
        now = asyncio.get_running_loop().time()
        for scope, condition in self._scopes.items():
            if not scope.expired() and not condition():
                scope.reschedule(now)
        self._changed.notify_all()
