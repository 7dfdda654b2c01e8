"""A process's own place in the directory: a record bound to a lease that is renewed for as long as the block runs.

The one rule: a lease that is lost ends the block, for everything done under it may have been given to others by then.
Being cut off from the directory does not: the lease may outlive that.

A name belongs to one process. The record of a former process dies with its lease, so a process that finds one under its
name waits for that; if the record is there for longer, its process lives, and this one ends.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from pipelined.aio.clock import Clock
from pipelined.aio.nursery import Nursery
from pipelined.aio.timeouts import with_timeout
from pipelined.directory import Conflict, CutOff, Directory, Entry, Lease, LeaseLost
from pipelined.errors import UsageError
from pipelined.swarm.records import Record, address_in
from transports import TransportError

NAME_LEASES = 2.0
"""Leases after which a process that has a name lives: its lease ends after one, after two if the directory restarts."""
LOOKS = 8
"""Looks at a name that is held, in the time of a lease."""


class NameTaken(UsageError):
    """Another process of the swarm, which lives, has this process's name."""

    def __init__(self, name: str, address: str, seconds: float):
        fact = f"another process of this swarm has the name {name} (at {address or 'an unknown address'}"
        super().__init__(f"{fact}, still there after {seconds:.1f} s); end it, or give this one another --name")


class Registration:
    """One key that is ours.

    Args:
        lease: that the key dies with; its number is the incarnation.
        address: of this process. A record that names it is a former one of this process, and is taken over at once;
            None: so is any record.
    """

    def __init__(self, directory: Directory, key: str, lease: Lease, clock: Clock, address: str | None = None):
        self.lease, self.revision = lease, 0
        self._index: str | None = None
        self._directory, self._key, self._clock, self._address = directory, key, clock, address

    @property
    def incarnation(self) -> int:
        return self.lease.number

    def another(self, prefix: str) -> "Registration":
        """A second key under the same lease, and the same name."""
        return Registration(self._directory, prefix + self._key.partition("/")[2], self.lease, self._clock)

    async def claim(self) -> int:
        """Wait until no other process has the key. Returns the revision of our own record there, 0 if there is none.

        Raises: NameTaken; CutOff.
        Cost: one small question; while another process has the key `LOOKS` in the time of a lease.
        """
        seconds, began = self.lease.seconds, self._clock.now()
        while True:
            try:
                await self._directory.transact({self._key: 0}, {})
                return 0
            except Conflict as error:
                held = error.found[self._key]
            if not self._is_foreign(held):
                return held.revision
            if (passed := self._clock.now() - began) > NAME_LEASES * seconds:
                raise NameTaken(self._key.partition("/")[2], address_in(held.value), passed)
            await self._clock.sleep(seconds / LOOKS)

    def _is_foreign(self, held: Entry) -> bool:
        return (
            self._address is not None
            and held.lease not in (0, self.lease.number)
            and address_in(held.value) != self._address
        )

    async def put(self, record: Record) -> None:
        """Say what we are now.

        Raises: LeaseLost: also where another process took our key. NameTaken: as `claim`. CutOff.
        """
        while True:
            put, index = {self._key: record.pack()}, record.index
            if index is not None:
                put[index] = put[self._key]
            gone = [self._index] if self._index not in (None, index) else []
            try:
                self.revision = await self._directory.transact({self._key: self.revision}, put, gone, self.lease)
                self._index = index
                return
            except Conflict as error:
                found = error.found[self._key]
                if self.revision or not found:
                    raise LeaseLost from error
                self.revision = await self.claim()
                self._index = _index_of(type(record), found)


@asynccontextmanager
async def registered(
    directory: Directory, key: str, seconds: float, clock: Clock, address: str | None = None
) -> AsyncIterator[Registration]:
    """Hold a lease for as long as the block runs; nothing is written under the key before `Registration.put`.

    The block begins when no other process has the key; see `Registration.claim`.

    Behind the block the lease is revoked, so that others need not wait for its end; that takes as long as it would
    live, at most.

    Raises:
        LeaseLost: it was lost; the block is cancelled first.
        NameTaken: another process has the key, and lives.
    """
    lease = await directory.grant(seconds)
    try:
        async with Nursery() as tasks:
            keeping = tasks.create_task(_keep(lease, clock))
            place = Registration(directory, key, lease, clock, address)
            if address is not None:
                await place.claim()
            yield place
            keeping.cancel()
    finally:
        with suppress(CutOff, TimeoutError, TransportError):
            await with_timeout(clock, lease.seconds, lease.revoke())


def _index_of(kind: type[Record], found: Entry) -> str | None:
    """The second key of a former record; None where it cannot be read: then it dies with the former lease."""
    try:
        return kind.unpack(found.value).index
    except ValueError:
        return None


async def _keep(lease: Lease, clock: Clock) -> None:
    while True:
        with suppress(CutOff):
            await lease.keep(clock)
