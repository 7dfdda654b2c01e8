"""Leases of an etcd cluster. The rule: a lease's number is chosen by its client, so that granting it twice grants one.

etcd counts in whole seconds, no fewer than its elections take, and does not see connections break.
"""

import math

from pipelined.directory.api import Lease, LeaseLost
from pipelined.directory.etcd.gateway import EXISTS, NOT_FOUND, PRECONDITION, EtcdError, Gateway


class EtcdLease(Lease):
    """A lease.

    Args:
        seconds: as etcd granted them.
    """

    def __init__(self, gateway: Gateway, number: int, seconds: float):
        self.number, self.seconds = number, seconds
        self._gateway = gateway

    @classmethod
    async def grant(cls, gateway: Gateway, number: int, seconds: float) -> "EtcdLease":
        """The lease of this number, which nobody else takes, no shorter than asked for. Raises CutOff."""
        try:
            told = await gateway.call("lease/grant", {"ID": str(number), "TTL": str(math.ceil(seconds))})
            return cls(gateway, number, float(told["TTL"]))
        except EtcdError as error:
            if error.code not in (EXISTS, PRECONDITION):
                raise
            return cls(gateway, number, float((await _left(gateway, number))["grantedTTL"]))

    async def renew(self) -> None:
        told = await self._gateway.call("lease/keepalive", {"ID": str(self.number)})
        if int(told.get("TTL", 0)) <= 0:
            raise LeaseLost(f"no such lease (lease: {self.number}); it ran out or was revoked")

    async def revoke(self) -> None:
        try:
            await self._gateway.call("lease/revoke", {"ID": str(self.number)})
        except EtcdError as error:
            if error.code != NOT_FOUND:
                raise

    async def lives(self) -> bool:
        """Whether it has not run out. Raises CutOff."""
        return int((await _left(self._gateway, self.number)).get("TTL", 0)) > 0


async def _left(gateway: Gateway, number: int) -> dict[str, str]:
    return await gateway.call("lease/timetolive", {"ID": str(number)})
