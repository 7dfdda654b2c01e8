"""The presence of a process in its system: it lives under one lease after another, with a new incarnation each time."""

from collections.abc import Awaitable, Callable
from typing import NoReturn

from pipelined.membership.connection import LocalMember
from pipelined.membership.directory import CutOff, LeaseLost
from pipelined.membership.registration import Registration, registered
from pipelined.membership.view import RETRY_S
from pipelined.process.reporting.events import warn


async def run_under_leases(
    local: LocalMember, prefix: str, lease_s: float, live: Callable[[Registration], Awaitable[object]]
) -> NoReturn:
    """Hold this process's name and run `live`; then, or when the lease is lost, begin anew under a new lease.

    Args:
        prefix: of the keys of the processes of its role; the process's name follows.
        lease_s: seconds without a heartbeat after which the process is removed.
        live: what the process does under one lease; it is cancelled when the lease is lost.
    Raises:
        NameTaken: another process has the name. The first error of `live`; the lease is revoked first.
    """
    while True:
        try:
            address = local.endpoint.address
            async with registered(local.directory, prefix + local.name, lease_s, local.clock, address) as registration:
                await live(registration)
        except (LeaseLost, CutOff) as error:
            warn("membership lost", member=local.name, why=str(error) or type(error).__name__)
            await local.clock.sleep(RETRY_S)
