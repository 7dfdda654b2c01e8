"""The latest changes of a directory, kept for its watchers.

A revision is kept whole or not at all. Every revision above `since` is here, without a gap, so a watcher that has seen
`since` or more misses nothing.
"""

from collections import deque
from collections.abc import Iterator, Sequence

from pipelined.directory.api import Change, FellBehind, Prefixes

CHANGE_BYTES = 100
"""Bytes of a change beside its key and value, about."""


class ChangeLog:
    """The changes of the latest revisions; the oldest are dropped.

    Args:
        most: bytes of all changes that are kept; the last revision is kept even where it is larger.
        since: the revision that the changes begin after.
    """

    def __init__(self, most: int, since: int = 0):
        self.since = since
        self._most, self._bytes = most, 0
        self._revisions: deque[Sequence[Change]] = deque()

    def __iter__(self) -> Iterator[Sequence[Change]]:
        """Each revision's changes, from the oldest."""
        return iter(self._revisions)

    def add(self, changes: Sequence[Change]) -> None:
        """All changes of the next revision."""
        self._revisions.append(changes)
        self._bytes += size(changes)
        while self._bytes > self._most and len(self._revisions) > 1:
            oldest = self._revisions.popleft()
            self._bytes -= size(oldest)
            self.since = oldest[0].revision

    def after(self, prefix: Prefixes, revision: int) -> list[Sequence[Change]]:
        """What has changed below the prefixes since then, a revision an item.

        Raises:
            FellBehind: some of it has been forgotten.
        Cost: one look at each change since then.
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
    """About the bytes that changes take."""
    return sum(CHANGE_BYTES + len(key) + (len(entry.value) if entry else 0) for key, entry, _ in changes)
