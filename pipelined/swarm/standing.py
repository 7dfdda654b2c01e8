"""A process's own place in the directory: a record bound to a lease that is renewed for as long as the block runs.

The one rule: a lease that is lost ends the block, for everything done under it may have been given to others by then.
Being cut off from the directory does not: the lease may outlive that.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from pipelined.clock import Clock
from pipelined.nursery import Nursery
from pipelined.swarm.directory import Conflict, CutOff, Directory, Lease, LeaseLost, keep
from pipelined.swarm.directory.within import within
from pipelined.swarm.records import Record
from transports import TransportError


class Standing:
    """One key that is ours.

    Args:
        lease: that the key dies with; its number is the incarnation.
    """

    def __init__(self, directory: Directory, key: str, lease: Lease):
        self.lease, self.revision = lease, 0
        self._directory, self._key = directory, key

    @property
    def incarnation(self) -> int:
        return self.lease.number

    def another(self, prefix: str) -> "Standing":
        """A second key under the same lease, and the same name."""
        return Standing(self._directory, prefix + self._key.partition("/")[2], self.lease)

    async def put(self, record: Record) -> None:
        """Say what we are now.

        Raises: LeaseLost: also where somebody else took our key. CutOff.
        """
        while True:
            try:
                put = {self._key: record.pack()}
                self.revision = await self._directory.transact({self._key: self.revision}, put, lease=self.lease)
                return
            except Conflict as error:
                found = error.found[self._key]
                if self.revision or not found:
                    raise LeaseLost from error
                self.revision = found.revision  # our former self's, which nobody renews any more


@asynccontextmanager
async def standing(directory: Directory, key: str, seconds: float, clock: Clock) -> AsyncIterator[Standing]:
    """Hold a lease for as long as the block runs; nothing is written under the key before `Standing.put`.

    Behind the block the lease is revoked, so that others need not wait for its end; that takes as long as it would
    live, at most.

    Raises:
        LeaseLost: it was lost; the block is cancelled first.
    """
    lease = await directory.grant(seconds)
    try:
        async with Nursery() as tasks:
            keeping = tasks.create_task(_keep(lease, clock))
            yield Standing(directory, key, lease)
            keeping.cancel()
    finally:
        with suppress(CutOff, TimeoutError, TransportError):
            await within(clock, lease.seconds, lease.revoke())


async def _keep(lease: Lease, clock: Clock) -> None:
    while True:
        with suppress(CutOff):
            await keep(lease, clock)
