"""The registration of a process in the directory: a record bound to a lease, which is renewed while a block runs.

A lost lease cancels the block, because the leader may already have assigned the process's work to another. A process
that is cut off from the directory continues: it may reach the directory again before the lease expires.

A name belongs to one process. The record of an earlier process is deleted when its lease expires, so a process that
finds a record under its name waits for that. If the record stays longer, its process is alive, and this one exits.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import NoReturn

from pipelined.aio.clock import Clock
from pipelined.aio.tasks import with_timeout
from pipelined.errors import UsageError
from pipelined.membership.connection import LocalMember
from pipelined.membership.directory import Conflict, CutOff, Directory, Entry, Lease, LeaseLost
from pipelined.membership.record import Record, address_in
from pipelined.membership.view import RETRY_S
from pipelined.process.reporting.events import warn
from transports import Nursery, TransportError

NAME_LEASES = 2.0
"""Lease periods after which a process that still has a name must be alive: the lease of a dead process expires after
one period, or after two if the directory restarts.
"""
POLLS_PER_LEASE = 8
"""Reads of a held name per lease period."""


class NameTaken(UsageError):
    """Another process, which is alive, has this process's name."""

    def __init__(self, name: str, address: str, seconds: float):
        fact = f"another process has the name {name} (at {address or 'an unknown address'}"
        super().__init__(f"{fact}, still there after {seconds:.1f} s); end it, or give this one another --name")


class Registration:
    """One key of this process.

    Attributes:
        revision: of the record under the key, for transactions; 0: none was written.

    Args:
        lease: the key is deleted when it ends; its number is the incarnation.
        address: of this process. A record with this address is an earlier one of this process, and is overwritten
            at once. None: any record is overwritten at once.
    """

    def __init__(self, directory: Directory, key: str, lease: Lease, clock: Clock, address: str | None = None):
        self.lease, self.revision = lease, 0
        self._copy_key: str | None = None
        self._directory = directory
        self.key = key
        self._clock = clock
        self._address = address

    @property
    def incarnation(self) -> int:
        return self.lease.number

    def with_prefix(self, prefix: str) -> "Registration":
        """The registration of the same name under another prefix, by the same lease."""
        return Registration(self._directory, prefix + self.key.partition("/")[2], self.lease, self._clock)

    async def claim(self) -> int:
        """Wait until no other process has the key. Returns the revision of this process's own record, 0 if missing.

        Raises: NameTaken; CutOff.
        Cost: one small request; while another process has the key, `POLLS_PER_LEASE` requests per lease period.
        """
        seconds = self.lease.seconds
        start_s = self._clock.now()
        while True:
            try:
                await self._directory.transact({self.key: 0}, {})
                return 0
            except Conflict as error:
                entry = error.entries[self.key]
            if entry is None:
                continue
            if not self._is_foreign(entry):
                return entry.revision
            if (waited_s := self._clock.now() - start_s) > NAME_LEASES * seconds:
                raise NameTaken(self.key.partition("/")[2], address_in(entry.value), waited_s)
            await self._clock.sleep(seconds / POLLS_PER_LEASE)

    def _is_foreign(self, entry: Entry) -> bool:
        return (
            self._address is not None
            and entry.lease not in (0, self.lease.number)
            and address_in(entry.value) != self._address
        )

    async def put(self, record: Record) -> None:
        """Write the record of this process under its key, and under its second key if it has one.

        Raises: LeaseLost: also if another process took the key. NameTaken: as `claim`. CutOff.
        """
        while True:
            records = {self.key: record.pack()}
            copy_key = record.copy_key
            if copy_key is not None:
                records[copy_key] = records[self.key]
            deleted_keys = [self._copy_key] if self._copy_key not in (None, copy_key) else []
            try:
                self.revision = await self._directory.transact(
                    {self.key: self.revision}, records, deleted_keys, self.lease
                )
                self._copy_key = copy_key
                return
            except Conflict as error:
                entry = error.entries[self.key]
                if self.revision or not entry:
                    raise LeaseLost from error
                self.revision = await self.claim()
                self._copy_key = _copy_key_of(type(record), entry)


@asynccontextmanager
async def registered(
    directory: Directory, key: str, seconds: float, clock: Clock, address: str | None = None
) -> AsyncIterator[Registration]:
    """Hold a lease while the block runs; nothing is written under the key before `Registration.put`.

    With an address, the block begins when no other process has the key; see `Registration.claim`.

    After the block the lease is revoked, so that other processes need not wait until it expires. The attempt takes at
    most one lease period.

    Raises:
        LeaseLost: the lease was lost; the block is cancelled first.
        NameTaken: another process has the key, and is alive.
    """
    lease = await directory.grant(seconds)
    try:
        async with Nursery() as tasks:
            keep_alive_task = tasks.create_task(_keep_alive(lease, clock))
            registration = Registration(directory, key, lease, clock, address)
            if address is not None:
                await registration.claim()
            yield registration
            keep_alive_task.cancel()
    finally:
        with suppress(CutOff, TimeoutError, TransportError):
            await with_timeout(clock, lease.seconds, lease.revoke())


async def run_under_leases(
    local: LocalMember, prefix: str, lease_s: float, work: Callable[[Registration], Awaitable[object]]
) -> NoReturn:
    """Hold this process's name and run `work`; then, or when the lease is lost, do both again under a new lease.

    Each lease is a new incarnation of the process.

    Args:
        prefix: of the keys of the processes of its role; the process's name follows.
        lease_s: seconds without a heartbeat after which the process is removed.
        work: what the process does under one lease; it is cancelled when the lease is lost.
    Raises:
        NameTaken: another process has the name. The first error of `work`; the lease is revoked first.
    """
    while True:
        try:
            address = local.endpoint.address
            async with registered(local.directory, prefix + local.name, lease_s, local.clock, address) as registration:
                await work(registration)
        except (LeaseLost, CutOff) as error:
            warn("membership lost", member=local.name, why=str(error) or type(error).__name__)
            await local.clock.sleep(RETRY_S)


def _copy_key_of(kind: type[Record], entry: Entry) -> str | None:
    """The second key of an earlier record; None if it cannot be read: then it is deleted when its lease expires."""
    try:
        return kind.unpack(entry.value).copy_key
    except ValueError:
        return None


async def _keep_alive(lease: Lease, clock: Clock) -> None:
    while True:
        with suppress(CutOff):
            await lease.keep_alive(clock)
