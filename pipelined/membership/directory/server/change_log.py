"""The latest changes of a directory, for its watchers.

A revision is kept whole or not at all. The log holds every revision after `since`, without a gap, so a watcher that has
seen `since` or a later revision misses nothing.
"""

from collections import deque
from collections.abc import Iterator, Sequence

from pipelined.membership.directory.api import Change, FellBehind, Prefixes

CHANGE_BYTES = 100
"""Approximate bytes of a change in addition to its key and value."""


class ChangeLog:
    """The changes of the latest revisions; the oldest are dropped.

    Args:
        most: bytes of changes to keep; the last revision is kept even if it is larger.
        since: the revision before the first change of the log.
    """

    def __init__(self, most: int, since: int = 0):
        self.since = since
        self._most, self._bytes = most, 0
        self._revisions: deque[Sequence[Change]] = deque()

    def __iter__(self) -> Iterator[Sequence[Change]]:
        """The changes of each revision, oldest first."""
        return iter(self._revisions)

    def add(self, changes: Sequence[Change]) -> None:
        """Append all changes of the next revision, and drop the oldest revisions beyond the limit."""
        self._revisions.append(changes)
        self._bytes += size(changes)
        while self._bytes > self._most and len(self._revisions) > 1:
            oldest = self._revisions.popleft()
            self._bytes -= size(oldest)
            self.since = oldest[0].revision

    def after(self, prefix: Prefixes, revision: int) -> list[Sequence[Change]]:
        """The changes under the prefixes after a revision, one item per revision.

        Raises:
            FellBehind: some of these changes were dropped.
        Cost: one comparison per change after that revision.
        """
        if revision < self.since:
            raise FellBehind(f"changes are kept from revision {self.since} on (after: {revision}); read again")
        found: list[Sequence[Change]] = []
        for changes in reversed(self._revisions):
            if changes[0].revision <= revision:
                break
            if below := [change for change in changes if change.key.startswith(prefix)]:
                found.append(below)
        return found[::-1]


def size(changes: Sequence[Change]) -> int:
    """The approximate bytes of some changes."""
    return sum(CHANGE_BYTES + len(key) + (len(entry.value) if entry else 0) for key, entry, _ in changes)
