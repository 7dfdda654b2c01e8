"""The latest changes of a directory, and its watchers: those with a change under their prefixes are woken.

The log keeps a revision whole or not at all. It holds every revision after `start`, without a gap, so a watcher that
has seen `start` or a later revision misses nothing.

Watchers of the same prefixes form a group. A change marks the groups that it concerns. A task wakes the marked groups
in the next turn of the loop, or later while the directory is busy with the watchers that it woke before. So a burst of
changes becomes few messages to each watcher, and a single change is sent at once.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from pipelined.aio.clock import Clock
from pipelined.aio.tasks import Notifier
from pipelined.membership.directory.api import Change, FellBehind, Prefixes

CHANGE_BYTES = 100
"""Approximate bytes of a change in addition to its key and value."""
REPLY_S = 5e-5
"""Approximate seconds of one core for the reply to one watcher. After waking N watchers the task pauses for N times
this.
"""


class ChangeLog:
    """The changes of the latest revisions; the oldest are dropped.

    Args:
        max_bytes: bytes of changes to keep; the last revision is kept even if it is larger.
        start: the revision before the first change of the log.
    """

    def __init__(self, max_bytes: int, start: int = 0):
        self.start = start
        self._max_bytes, self._bytes = max_bytes, 0
        self._revisions: deque[Sequence[Change]] = deque()

    def __iter__(self) -> Iterator[Sequence[Change]]:
        """The changes of each revision, oldest first."""
        return iter(self._revisions)

    def add(self, changes: Sequence[Change]) -> None:
        """Append all changes of the next revision, and drop the oldest revisions beyond the limit."""
        self._revisions.append(changes)
        self._bytes += size(changes)
        while self._bytes > self._max_bytes and len(self._revisions) > 1:
            oldest = self._revisions.popleft()
            self._bytes -= size(oldest)
            self.start = oldest[0].revision

    def changes_after(self, prefix: Prefixes, revision: int) -> list[Sequence[Change]]:
        """The changes under the prefixes after a revision, one item per revision.

        Raises:
            FellBehind: some of these changes were dropped.
        Cost: one comparison per change after that revision.
        """
        if revision < self.start:
            raise FellBehind(f"changes are kept from revision {self.start} on (after: {revision}); read again")
        revisions: list[Sequence[Change]] = []
        for changes in reversed(self._revisions):
            if changes[0].revision <= revision:
                break
            if matching := [change for change in changes if change.key.startswith(prefix)]:
                revisions.append(matching)
        return revisions[::-1]


class WatchGroup(Notifier):
    """The watchers of the same prefixes.

    Attributes:
        waiting: their number.
    """

    waiting = 0


class Watchers:
    """All groups of a directory."""

    def __init__(self, clock: Clock):
        self._clock = clock
        self._rest_until = clock.now()
        self._groups: dict[Prefixes, WatchGroup] = {}
        self._groups_by_prefix: dict[str, dict[WatchGroup, None]] = {}
        self._marked_groups: dict[WatchGroup, None] = {}
        self._has_marked = Notifier()

    @contextmanager
    def waiting(self, prefixes: Prefixes) -> Iterator[WatchGroup]:
        """Join the group of these prefixes while the block runs; no change after a call of its `wait` is missed."""
        group = self._groups.get(prefixes) or self._add(prefixes)
        group.waiting += 1
        try:
            yield group
        finally:
            group.waiting -= 1
            if not group.waiting:
                self._remove(prefixes)

    def mark_changed(self, changes: Sequence[Change]) -> None:
        """Mark the groups that these changes concern. Cost: one look-up per character of each key."""
        for key, _, _ in changes:
            for length in range(len(key) + 1):
                for group in self._groups_by_prefix.get(key[:length], ()):
                    self._marked_groups[group] = None
        if self._marked_groups:
            self._has_marked.notify_all()

    async def wake(self) -> NoReturn:
        """Wake marked groups until cancelled."""
        while True:
            if not self._marked_groups:
                await self._has_marked.wait()
            await self._clock.sleep(max(0.0, self._rest_until - self._clock.now()))
            groups, self._marked_groups = self._marked_groups, {}
            for group in groups:
                group.notify_all()
            self._rest_until = self._clock.now() + sum(group.waiting for group in groups) * REPLY_S

    def _add(self, prefixes: Prefixes) -> WatchGroup:
        group = self._groups[prefixes] = WatchGroup()
        for prefix in _prefix_set(prefixes):
            self._groups_by_prefix.setdefault(prefix, {})[group] = None
        return group

    def _remove(self, prefixes: Prefixes) -> None:
        group = self._groups.pop(prefixes)
        self._marked_groups.pop(group, None)
        for prefix in _prefix_set(prefixes):
            del self._groups_by_prefix[prefix][group]
            if not self._groups_by_prefix[prefix]:
                del self._groups_by_prefix[prefix]


def _prefix_set(prefixes: Prefixes) -> set[str]:
    return {prefixes} if isinstance(prefixes, str) else set(prefixes)


def size(changes: Sequence[Change]) -> int:
    """The approximate bytes of some changes."""
    return sum(CHANGE_BYTES + len(key) + (len(entry.value) if entry else 0) for key, entry, _ in changes)
