"""What a directory promises: a small, linearizable map of keys to values, with leases, watches and compare-and-set.

Everything that must be agreed on in a swarm is agreed on here and nowhere else. Revisions are those of etcd: one
number for the whole map that each change raises by one; a key's revision is that of its last change, 0 where it does
not exist. Values are bytes; what they mean is the caller's business.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from pipelined.aio.clock import Clock
from pipelined.aio.timeouts import with_timeout

Prefixes = str | tuple[str, ...]
"""What keys begin with, or several such, as `str.startswith` takes them; "" is every key."""
RENEWALS = 3
"""Renewals of a lease in its time; the lease survives if the first two fail."""


class Entry(NamedTuple):
    """A key that exists.

    Args:
        revision: of its last change.
        lease: the lease that it dies with; 0: none.
    """

    value: bytes
    revision: int
    lease: int = 0


class Change(NamedTuple):
    """One key was put (`entry`) or is gone (None)."""

    key: str
    entry: Entry | None
    revision: int


@dataclass(frozen=True, slots=True)
class View:
    """Everything below one or several prefixes at one revision."""

    revision: int
    entries: Mapping[str, Entry]


class CutOff(Exception):
    """The directory cannot be reached. Whoever hears this must commit nothing until it can be reached again."""


class WrongKey(CutOff):
    """The directory is there, and holds another key than this process, or one of them holds none."""


class LeaseLost(Exception):
    """The lease ran out or was revoked, and every key bound to it is gone; begin again under a new incarnation."""


class Conflict(Exception):
    """A transaction did not happen, for some key was not as expected; `found` is what those expected are now."""

    def __init__(self, found: Mapping[str, Entry | None]):
        super().__init__("not as expected: " + ", ".join(sorted(found)))
        self.found = found


class FellBehind(Exception):
    """A watcher asked for changes that are no longer kept; read again, and watch from there."""


class Full(Exception):
    """The directory holds as much as it may, and did not do it; the message says of what, and how much."""


class Lease(ABC):
    """A promise to be heard from. Time is counted by the directory's own monotonic clock, never compared.

    Attributes:
        number: names it in entries; that of a lease granted later is greater, whoever asked for it.
        seconds: how long after the last renewal it lives.
    """

    number: int
    seconds: float

    @abstractmethod
    async def renew(self) -> None:
        """Say that the holder lives. Raises LeaseLost; CutOff."""

    @abstractmethod
    async def revoke(self) -> None:
        """Give it up: its keys are gone at once; nothing happens if they are already. Raises CutOff."""

    async def disturbed(self) -> None:
        """Wait until it is wise to renew at once, as when the connection broke; for ever, where nothing tells."""
        await asyncio.get_running_loop().create_future()

    async def keep(self, clock: Clock) -> NoReturn:
        """Renew the lease until cancelled: after a third of its time, and at once when the connection broke.

        Raises:
            LeaseLost, CutOff: as `renew`.
        """
        while True:
            with suppress(TimeoutError):
                await with_timeout(clock, self.seconds / RENEWALS, self.disturbed())
            await self.renew()


class Directory(ABC):
    """A client. Calls go to the directory, and raise `CutOff` where it gives no answer in the time observed to do.

    Between a kill and a restart of the directory calls wait and try again for as long as `patience` seconds.
    """

    @abstractmethod
    async def read(self, prefix: Prefixes = "") -> View:
        """All keys that begin with a prefix, or with one of several, as of now: a linearizable read."""

    @abstractmethod
    async def transact(
        self,
        expect: Mapping[str, int],
        put: Mapping[str, bytes],
        delete: Sequence[str] = (),
        lease: Lease | None = None,
    ) -> int:
        """Change all or nothing.

        Args:
            expect: the revision that each of these keys must have, 0 for one that must not exist.
            put: new values; bound to `lease`, if given.
            delete: keys that are to be gone; need not exist.
        Returns: the revision of the change; where nothing was put or gone, the current one.
        Raises:
            Conflict: some key was not as expected.
            LeaseLost: the lease given is gone.
            CutOff: it is unknown whether it happened (it happens at most once); read to find out.
            Full: there is no room for it.
            ValueError: a key, value or number beyond `DirectoryLimits`.
        """

    @abstractmethod
    def watch(self, prefix: Prefixes, after: int) -> AsyncIterator[Sequence[Change]]:
        """What changes below one or several prefixes above the revision `after`.

        Each item holds the changes of one or more whole revisions, in order, so that what a watcher knows is always the
        directory as it was at one revision. Below one prefix every change is told; below several, at least the last of
        each key. Survives a restart of the directory.

        Raises:
            CutOff: as other calls do. FellBehind: some of these changes are no longer known.
        """

    @abstractmethod
    async def grant(self, seconds: float, lasting: bool = False) -> Lease:
        """A new lease, to live so long after each renewal, or longer where the directory counts in whole seconds.

        Args:
            lasting: it lives as long as that even if this process dies meanwhile.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let go of the connection; leases run on."""

    async def __aenter__(self) -> "Directory":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
