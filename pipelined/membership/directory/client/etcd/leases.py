"""Leases of an etcd cluster.

The client chooses the number of a lease, so a repeated grant request creates one lease. etcd rounds up to whole
seconds, at least its election time-out, and does not notice broken connections.
"""

import math

from pipelined.membership.directory.api import Lease, LeaseLost
from pipelined.membership.directory.client.etcd.gateway import (
    ALREADY_EXISTS,
    FAILED_PRECONDITION,
    NOT_FOUND,
    EtcdError,
    Gateway,
)


class EtcdLease(Lease):
    """A lease.

    Args:
        seconds: as granted by etcd.
    """

    def __init__(self, gateway: Gateway, number: int, seconds: float):
        self.number, self.seconds = number, seconds
        self._gateway = gateway

    @classmethod
    async def grant(cls, gateway: Gateway, number: int, seconds: float) -> "EtcdLease":
        """Grant the lease of this number, which must be unique, for at least these seconds. Raises CutOff."""
        try:
            reply = await gateway.call("lease/grant", {"ID": str(number), "TTL": str(math.ceil(seconds))})
            return cls(gateway, number, float(reply["TTL"]))
        except EtcdError as error:
            if error.code not in (ALREADY_EXISTS, FAILED_PRECONDITION):
                raise
            return cls(gateway, number, float((await _query_time_to_live(gateway, number))["grantedTTL"]))

    async def renew(self) -> None:
        reply = await self._gateway.call("lease/keepalive", {"ID": str(self.number)})
        if int(reply.get("TTL", 0)) <= 0:
            raise LeaseLost(f"no such lease (lease: {self.number}); it expired or was revoked")

    async def revoke(self) -> None:
        try:
            await self._gateway.call("lease/revoke", {"ID": str(self.number)})
        except EtcdError as error:
            if error.code != NOT_FOUND:
                raise

    async def exists(self) -> bool:
        """Whether the lease has not ended. Raises CutOff."""
        return int((await _query_time_to_live(self._gateway, self.number)).get("TTL", 0)) > 0


async def _query_time_to_live(gateway: Gateway, number: int) -> dict[str, str]:
    return await gateway.call("lease/timetolive", {"ID": str(number)})
