"""Keeping a lease alive. The rule: whoever lives by a lease learns in its own task that it is lost.

Knows the contract alone.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import NoReturn

from pipelined.clock import Clock
from pipelined.nursery import Nursery
from pipelined.swarm.directory.contract import CutOff, Directory, Lease
from pipelined.swarm.directory.within import within
from transports import TransportError

RENEWALS = 3
"""In the time of a lease; the first two may come to nothing."""


async def keep(lease: Lease, clock: Clock) -> NoReturn:
    """Renew a lease until cancelled: at a third of its time, and at once when the connection broke.

    Raises:
        LeaseLost, CutOff: as `Lease.renew`.
    """
    while True:
        with suppress(TimeoutError):
            await within(clock, lease.seconds / RENEWALS, lease.disturbed())
        await lease.renew()


@asynccontextmanager
async def kept(directory: Directory, seconds: float, clock: Clock) -> AsyncIterator[Lease]:
    """A lease that lives as long as this scope, and is revoked behind it.

    Raises:
        LeaseLost, CutOff: at the place where the scope then is, which is cancelled for it; never in a group.
    Revoking takes at most as long as the lease would live.
    """
    lease = await directory.grant(seconds)
    try:
        async with Nursery() as tasks:
            keeping = tasks.create_task(keep(lease, clock), name=f"keep lease {lease.number}")
            yield lease
            keeping.cancel()
    finally:
        with suppress(CutOff, TimeoutError, TransportError):
            await within(clock, lease.seconds, lease.revoke())
