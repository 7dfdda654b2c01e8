"""Waking those that wait for changes: only where something changed below their prefixes, and many changes at once.

Watchers of the same prefixes form a group. A change marks the groups that it concerns; a task wakes them in the next
turn of the loop, or later where those that were woken last still take the directory's time. So a storm of changes
becomes few messages to each watcher, and a change alone is told at once.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from pipelined.aio.clock import Clock
from pipelined.aio.notifier import Notifier
from pipelined.directory.api import Change, Prefixes

ANSWER_S = 5e-5
"""About what the answer to one watcher takes of a core. After waking N watchers none is woken for N times as long."""


class Group:
    """Those that watch the same prefixes."""

    def __init__(self) -> None:
        self.waiting, self._notifier = 0, Notifier()

    def wait(self) -> "asyncio.Future[None]":
        """The next change, to be awaited."""
        return self._notifier.wait()

    def wake(self) -> int:
        """Wake those that wait; how many."""
        self._notifier.notify_all()
        return self.waiting


class Watchers:
    """All groups of a directory."""

    def __init__(self, clock: Clock):
        self._clock, self._rest_until = clock, clock.now()
        self._groups: dict[Prefixes, Group] = {}
        self._by_prefix: dict[str, dict[Group, None]] = {}
        self._marked: dict[Group, None] = {}
        self._news = Notifier()

    @contextmanager
    def waiting(self, prefixes: Prefixes) -> Iterator[Group]:
        """Be one of a group; what changes from the call of its `wait` on is not missed."""
        group = self._groups.get(prefixes) or self._add(prefixes)
        group.waiting += 1
        try:
            yield group
        finally:
            group.waiting -= 1
            if not group.waiting:
                self._remove(prefixes)

    def changed(self, changes: Sequence[Change]) -> None:
        """These changes were made. Cost: one look-up for each character of each key."""
        for key, _, _ in changes:
            for length in range(len(key) + 1):
                for group in self._by_prefix.get(key[:length], ()):
                    self._marked[group] = None
        if self._marked:
            self._news.notify_all()

    async def wake(self) -> NoReturn:
        """Wake those that changes concern, until cancelled."""
        while True:
            if not self._marked:
                await self._news.wait()
            await self._clock.sleep(max(0.0, self._rest_until - self._clock.now()))
            marked, self._marked = self._marked, {}
            woken = sum(group.wake() for group in marked)
            self._rest_until = self._clock.now() + woken * ANSWER_S

    def _add(self, prefixes: Prefixes) -> Group:
        group = self._groups[prefixes] = Group()
        for prefix in _several(prefixes):
            self._by_prefix.setdefault(prefix, {})[group] = None
        return group

    def _remove(self, prefixes: Prefixes) -> None:
        group = self._groups.pop(prefixes)
        self._marked.pop(group, None)
        for prefix in _several(prefixes):
            del self._by_prefix[prefix][group]
            if not self._by_prefix[prefix]:
                del self._by_prefix[prefix]


def _several(prefixes: Prefixes) -> set[str]:
    return {prefixes} if isinstance(prefixes, str) else set(prefixes)
