"""The interface of a directory: a small, linearizable map of keys to values, with leases, watches and compare-and-set.

All agreement in a swarm goes through the directory. Revisions are those of etcd: one number for the whole map, raised
by one with each change. The revision of a key is that of its last change, 0 if the key does not exist. Values are
bytes; the caller interprets them.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from pipelined.aio.clock import Clock
from pipelined.aio.tasks import with_timeout

Prefixes = str | tuple[str, ...]
"""One prefix of keys, or several, as `str.startswith` takes them; "" selects every key."""
RENEWALS = 3
"""Renewals per lease period; the lease survives if the first two fail."""


class Entry(NamedTuple):
    """The value of an existing key.

    Args:
        revision: of its last change.
        lease: number of the lease that the key is bound to; 0: no lease.
    """

    value: bytes
    revision: int
    lease: int = 0


class Change(NamedTuple):
    """One key was put (`entry`), or deleted (None)."""

    key: str
    entry: Entry | None
    revision: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All entries under one or several prefixes at one revision."""

    revision: int
    entries: Mapping[str, Entry]


class CutOff(Exception):
    """The directory cannot be reached. The caller must commit nothing until it can be reached again."""


class DirectoryRefusal(CutOff):
    """The directory replies, and refuses this process however often it tries: it is another one, or see `WrongKey`."""


class WrongKey(DirectoryRefusal):
    """The directory replies, but its cluster key differs from this process's key, or only one of the two has a key."""


class LeaseLost(Exception):
    """The lease expired or was revoked, and every key bound to it is deleted; start again under a new incarnation."""


class Conflict(Exception):
    """A transaction was refused because a key did not have the expected revision; nothing changed.

    Attributes:
        entries: the current entries of all keys in `expect`; None: the key does not exist.
    """

    def __init__(self, entries: Mapping[str, Entry | None]):
        super().__init__("not as expected: " + ", ".join(sorted(entries)))
        self.entries = entries


class FellBehind(Exception):
    """A watcher requested changes that are no longer kept. Read again, and watch from the revision of that read."""


class Full(Exception):
    """A limit of the directory is reached; nothing changed. The message names the limit and the number."""


class Lease(ABC):
    """A lease that the owner renews; when it expires, the directory deletes the keys bound to it.

    The directory measures its time on its own monotonic clock; the clocks of two processes are never compared.

    Attributes:
        number: names the lease in entries. A lease granted later has a greater number, also if another client
            requested it.
        seconds: from the last renewal until the lease expires.
    """

    number: int
    seconds: float

    @abstractmethod
    async def renew(self) -> None:
        """Renew the lease for its full time. Raises LeaseLost; CutOff."""

    @abstractmethod
    async def revoke(self) -> None:
        """End the lease now and delete its keys; does nothing if it has ended. Raises CutOff."""

    async def wait_disturbed(self) -> None:
        """Wait until the lease should be renewed at once, for example because the connection broke.

        The default never returns: for directories that do not see connections break.
        """
        await asyncio.get_running_loop().create_future()

    async def keep_alive(self, clock: Clock) -> NoReturn:
        """Renew the lease until cancelled: after each third of its time, and at once when the connection breaks.

        Raises:
            LeaseLost, CutOff: as `renew`.
        """
        while True:
            with suppress(TimeoutError):
                await with_timeout(clock, self.seconds / RENEWALS, self.wait_disturbed())
            await self.renew()


class Directory(ABC):
    """A client of a directory. Calls raise `CutOff` if the directory does not reply in time.

    Calls retry for up to `patience` seconds, so that a killed directory can be restarted meanwhile.
    """

    @abstractmethod
    async def read(self, prefix: Prefixes = "") -> Snapshot:
        """All keys that begin with a prefix, or with one of several: a linearizable read of the current revision."""

    @abstractmethod
    async def transact(
        self,
        expect: Mapping[str, int],
        put: Mapping[str, bytes],
        delete: Sequence[str] = (),
        lease: Lease | None = None,
    ) -> int:
        """Change several keys atomically.

        Args:
            expect: the revision that each of these keys must have; 0: the key must not exist.
            put: new values; bound to `lease`, if given.
            delete: keys to delete; they need not exist.
        Returns: the revision of the change, or the current revision if nothing was put or deleted.
        Raises:
            Conflict: a key did not have the expected revision; nothing changed.
            LeaseLost: the given lease has ended; nothing changed.
            CutOff: the transaction happened once or not at all; read to find out.
            Full: there is no room; nothing changed.
            ValueError: a key, value or number is beyond `DirectoryLimits`; nothing was sent.
        """

    @abstractmethod
    def watch(self, prefix: Prefixes, after: int) -> AsyncIterator[Sequence[Change]]:
        """The changes under one or several prefixes after the revision `after`.

        Each item holds the changes of one or more whole revisions, in order, so a watcher that applies an item has
        the directory as it was at one revision. With one prefix the watch yields every change; with several, at least
        the last change of each key. The watch survives a restart of the directory.

        Raises:
            CutOff: as other calls.
            FellBehind: some of these changes are no longer kept.
        """

    @abstractmethod
    async def grant(self, seconds: float, lasting: bool = False) -> Lease:
        """Request a new lease.

        Args:
            seconds: until it expires after each renewal; a directory that counts in whole seconds rounds up.
            lasting: the lease lasts its full time even if this process dies.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close the connection; leases keep running."""

    async def __aenter__(self) -> "Directory":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
