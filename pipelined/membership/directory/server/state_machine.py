"""The directory as a state machine: no I/O and no clock; the same transitions give the same state.

Each request is decided in one call, so all clients see one order of changes. Every change is appended to `transitions`;
the server writes them to the journal before it replies, and `replay` repeats them. So the directory stays linearizable
across a restart.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pipelined.membership.directory.api import Change, Conflict, Entry, Full, LeaseLost, Prefixes, Snapshot
from pipelined.membership.directory.limits import DirectoryLimits
from pipelined.membership.directory.messages import RequestId
from pipelined.membership.directory.server.leases import Leases
from pipelined.membership.directory.server.sessions import ClientSession, ClientSessions
from pipelined.membership.directory.server.watchers import ChangeLog

Transition = tuple[Any, ...]
"""The name of a method below, without its underscore, and its arguments: whole numbers, text, bytes, lists and maps."""


class Folders:
    """The entries by folder; the folder of a key is the part up to its last slash.

    Members of a swarm read and watch whole folders. With this index the cost of a read depends on the folders that
    it names, not on the number of all keys.
    """

    def __init__(self) -> None:
        self._folders: dict[str, dict[str, Entry]] = {}

    def put(self, key: str, entry: Entry | None) -> None:
        """Put a key, or delete it."""
        folder = key[: key.rfind("/") + 1]
        keys = self._folders.setdefault(folder, {})
        keys.pop(key, None)
        if entry is not None:
            keys[key] = entry
        if not keys:
            del self._folders[folder]

    def entries_below(self, prefix: Prefixes) -> dict[str, Entry]:
        """All entries with a key that begins with one of the prefixes.

        Cost: one comparison per folder, and one per key in folders that match a prefix only in part.
        """
        prefixes = (prefix,) if isinstance(prefix, str) else prefix
        entries: dict[str, Entry] = {}
        for folder, keys in self._folders.items():
            if folder.startswith(prefixes):
                entries.update(keys)
            elif any(prefix.startswith(folder) for prefix in prefixes):
                entries.update((key, entry) for key, entry in keys.items() if key.startswith(prefixes))
        return entries


class StateMachine:
    """A map of keys to values with leases; every change has a revision.

    Args:
        name: a number drawn when the directory began; it distinguishes this directory from one that lost its journal.
        limits: on the contents. The size of one request is checked before.
    Attributes:
        revision: of the last change.
        transitions: since the server last emptied the list.
    """

    def __init__(self, name: int, limits: DirectoryLimits | None = None):
        self.name = name
        self.limits = limits or DirectoryLimits()
        self.revision = 0
        self.transitions: list[Transition] = []
        self._last_number = self._bytes = self._taken_revision = 0
        self._entries: dict[str, Entry] = {}
        self._folders = Folders()
        self._keys_of_lease: dict[int, set[str]] = {}
        self._leases = Leases()
        self._log = ChangeLog(self.limits.history)
        self._sessions = ClientSessions(self.limits)

    def read(self, prefix: Prefixes) -> Snapshot:
        """All entries under the prefixes. Cost: as `Folders.below`."""
        return Snapshot(self.revision, self._folders.entries_below(prefix))

    def changes(self, prefix: Prefixes, after: int) -> list[Sequence[Change]]:
        """All changes under the prefixes after a revision, one item per revision. Raises FellBehind."""
        return self._log.changes_after(prefix, after)

    def take_changes(self) -> list[Change]:
        """The changes since the last call, except those that are no longer kept."""
        start, self._taken_revision = max(self._taken_revision, self._log.start), self.revision
        return [change for changes in self._log.changes_after("", start) for change in changes]

    def enter(self) -> int:
        """Add a client; returns its number."""
        self._apply("enter", self._last_number + 1)
        return self._last_number

    def grant(self, request: RequestId, seconds: float, now: float) -> int:
        """Grant a lease; returns its number. Raises StaleRequest; Full."""
        lease = self._sessions.find_result(request)
        if lease is None:
            if len(self._leases) >= self.limits.leases:
                raise Full(f"too many leases (leases: {len(self._leases)}, most: {self.limits.leases})")
            lease = self._last_number + 1
            self._apply("grant", request, lease, seconds)
            self._leases.renew(lease, now)
        return lease

    def renew(self, lease: int, now: float) -> float:
        """Start the time of a lease again; returns its length in seconds. Raises LeaseLost."""
        if lease not in self._leases:
            raise LeaseLost(f"no such lease (lease: {lease}); it expired or was revoked")
        return self._leases.renew(lease, now)

    def has_lease(self, lease: int) -> bool:
        """Whether the lease exists."""
        return lease in self._leases

    def revoke(self, lease: int) -> None:
        """End a lease and delete its keys; does nothing if the lease has ended."""
        if lease in self._leases:
            self._apply("end", lease)

    def transact(
        self,
        request: RequestId,
        expect: Mapping[str, int],
        put: Mapping[str, bytes],
        delete: Sequence[str] = (),
        lease: int = 0,
    ) -> int:
        """As `Directory.transact`. Raises Conflict; LeaseLost; StaleRequest; Full: in each case nothing changed."""
        result = self._sessions.find_result(request)
        if result is not None:
            return result
        if lease and lease not in self._leases:
            raise LeaseLost(f"no such lease (lease: {lease}); it expired or was revoked")
        self._compare(expect)
        deleted = [key for key in delete if key in self._entries]
        if not put and not deleted:
            return self.revision
        self._check_room(put, deleted)
        self._apply("change", request, dict(put), deleted, lease)
        return self.revision

    def next_expiry(self) -> float | None:
        """The time at which the next lease expires; None: no lease has one."""
        return self._leases.next_expiry()

    def expire(self, now: float) -> None:
        """End all expired leases."""
        for lease in self._leases.expire(now):
            self._apply("end", lease)

    def shorten(self, lease: int, expiry: float) -> None:
        """The connection to the owner broke: see `Leases.shorten`."""
        self._leases.shorten(lease, expiry)

    def extend_after_pause(self, now: float) -> None:
        """The directory did not run for a while up to now: see `Leases.extend_after_pause`."""
        self._leases.extend_after_pause(now)

    def renew_all(self, now: float) -> None:
        """Start the time of every lease again, after a restart."""
        for lease in self._leases.lengths():
            self._leases.renew(lease, now)

    def replay(self, transitions: Iterable[Transition]) -> None:
        """Repeat the transitions of another state machine; call `renew_all` afterwards."""
        for name, *arguments in transitions:
            TRANSITIONS[name](self, *arguments)

    def snapshot(self) -> list[Transition]:
        """Transitions that bring an empty state machine to this state."""
        entries = [[key, entry.value, entry.revision, entry.lease] for key, entry in self._entries.items()]
        clients = [
            [number, session.settled, dict(session.results)] for number, session in self._sessions.sessions.items()
        ]
        past_changes = [[_change_to_list(change) for change in changes] for changes in self._log]
        contents = ("restore", self.name, self.revision, self._last_number, self._leases.lengths(), entries, clients)
        return [contents, ("remember", self._log.start, past_changes), ("hold", dict(self._sessions.owners))]

    def _apply(self, name: str, *arguments: Any) -> None:
        TRANSITIONS[name](self, *arguments)
        self.transitions.append((name, *arguments))

    def _compare(self, expect: Mapping[str, int]) -> None:
        entries = {key: self._entries.get(key) for key in expect}
        if any((entry.revision if entry else 0) != expect[key] for key, entry in entries.items()):
            raise Conflict(entries)

    def _check_room(self, put: Mapping[str, bytes], deleted: Sequence[str]) -> None:
        entries = len(self._entries) + sum(key not in self._entries for key in put) - len(deleted)
        if entries > self.limits.entries:
            raise Full(f"too many keys (keys: {entries:,}, most: {self.limits.entries:,}); delete some")
        replaced_bytes = sum(self._entry_bytes(key) for key in (*put, *deleted))
        total = self._bytes - replaced_bytes + sum(_bytes_of(key, value) for key, value in put.items())
        if total > self.limits.total:
            raise Full(f"too many bytes in all (bytes: {total:,}, most: {self.limits.total:,}); delete some")

    # The transitions. They check nothing, so that replaying them gives the same state.

    def _enter(self, client: int) -> None:
        self._last_number = client
        self._sessions.enter(client)

    def _grant(self, request: Sequence[int], lease: int, seconds: float) -> None:
        self._last_number = lease
        self._leases.add(lease, seconds)
        self._sessions.keep_result(RequestId(*request), lease)
        self._sessions.add_lease(RequestId(*request).client, lease)

    def _change(self, request: Sequence[int], put: Mapping[str, bytes], deleted: Sequence[str], lease: int) -> None:
        self._write(
            [*((key, Entry(value, self.revision + 1, lease)) for key, value in put.items()), *_deletions(deleted)]
        )
        self._sessions.keep_result(RequestId(*request), self.revision)

    def _end(self, lease: int) -> None:
        if lease in self._leases:
            self._leases.remove(lease)
        self._sessions.remove_lease(lease)
        if keys := sorted(self._keys_of_lease.get(lease, ())):
            self._write(_deletions(keys))

    def _restore(self, name: int, revision: int, numbers: int, *contents: Any) -> None:
        leases, entries, clients = contents
        self.name, self.revision, self._last_number = name, revision, numbers
        for lease, seconds in leases.items():
            self._leases.add(lease, seconds)
        for key, *entry in entries:
            self._put_entry(key, Entry(*entry))
        for number, settled, results in clients:
            self._sessions.sessions[number] = ClientSession(settled, dict(results))

    def _remember(self, start: int, past_changes: Any) -> None:
        self._log = ChangeLog(self.limits.history, start)
        for changes in past_changes:
            self._log.add([Change(key, entry and Entry(*entry), revision) for key, entry, revision in changes])

    def _hold(self, owners: Mapping[int, int]) -> None:
        for lease, client in owners.items():
            self._sessions.add_lease(client, lease)

    # Storage of keys.

    def _write(self, entries: Sequence[tuple[str, Entry | None]]) -> None:
        self.revision += 1
        for key, entry in entries:
            self._put_entry(key, entry)
        self._log.add([Change(key, entry, self.revision) for key, entry in entries])

    def _put_entry(self, key: str, entry: Entry | None) -> None:
        """Put a key, or delete it, and bind it to no lease but its own."""
        self._bytes -= self._entry_bytes(key)
        replaced = self._entries.pop(key, None)
        self._folders.put(key, entry)
        if replaced and replaced.lease:
            self._unbind(replaced.lease, key)
        if entry:
            self._entries[key] = entry
            self._bytes += self._entry_bytes(key)
            if entry.lease:
                self._keys_of_lease.setdefault(entry.lease, set()).add(key)

    def _unbind(self, lease: int, key: str) -> None:
        self._keys_of_lease[lease].remove(key)
        if not self._keys_of_lease[lease]:
            del self._keys_of_lease[lease]

    def _entry_bytes(self, key: str) -> int:
        return _bytes_of(key, self._entries[key].value) if key in self._entries else 0


TRANSITIONS: dict[str, Callable[..., None]] = {
    "enter": StateMachine._enter,
    "grant": StateMachine._grant,
    "change": StateMachine._change,
    "end": StateMachine._end,
    "restore": StateMachine._restore,
    "remember": StateMachine._remember,
    "hold": StateMachine._hold,
}
"""The methods that change a state machine, by their names in the journal."""


def _bytes_of(key: str, value: bytes) -> int:
    return len(key.encode()) + len(value)


def _deletions(keys: Iterable[str]) -> list[tuple[str, Entry | None]]:
    return [(key, None) for key in keys]


def _change_to_list(change: Change) -> list[Any]:
    return [change.key, change.entry and list(change.entry), change.revision]
