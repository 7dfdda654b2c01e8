"""Keeping a lease alive: a task that renews it, and that fails when it is lost. Knows the contract alone."""

from contextlib import suppress
from typing import NoReturn

from pipelined.aio.clock import Clock
from pipelined.aio.timeouts import within
from pipelined.directory.api import Lease

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
