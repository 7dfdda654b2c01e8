"""Transactions on etcd that happen at most once, also when the client repeats them.

etcd carries out a repeated transaction again. So each client has a key of its own, its mark. Every transaction expects
the revision of the mark that the client last saw, and puts its own number there. A repeated transaction finds the mark
changed, and the number in it tells which transaction changed it. The mark is bound to a lease of the client.
"""

import asyncio
import math
import secrets
from collections.abc import Sequence

from pipelined.aio.clock import Clock
from pipelined.membership.directory.api import Entry, LeaseLost
from pipelined.membership.directory.client.etcd.gateway import NOT_FOUND, EtcdError, Gateway
from pipelined.membership.directory.client.etcd.leases import EtcdLease
from pipelined.membership.directory.client.etcd.messages import EtcdMessage, Keys, revision_of

MARK_S = 600.0
"""Seconds of a mark's lease. The first transaction after half of this time renews it."""
NO_MARK = Entry(b"", 0)


class Marks:
    """One client's mark, and its transactions, one at a time.

    Args:
        namespace: prefix of the marks of all clients.
    """

    def __init__(self, gateway: Gateway, clock: Clock, namespace: str):
        self._gateway, self._clock = gateway, clock
        self._keys = Keys(namespace)
        self._name = secrets.token_hex(8)
        self._number = self._revision = 0
        self._lease: EtcdLease | None = None
        self._renewed = -math.inf
        self._lock = asyncio.Lock()

    async def transact(
        self, compare: Sequence[EtcdMessage], success: Sequence[EtcdMessage], failure: Sequence[EtcdMessage]
    ) -> tuple[int, list[EtcdMessage]]:
        """Run a transaction at most once.

        Returns: the revision of the change; or 0 and the results of `failure`.
        Raises:
            EtcdError: as `Gateway.call`; NOT_FOUND: a lease in `success` does not exist.
        """
        async with self._lock:
            self._number += 1
            while True:
                lease = await self._renew_or_grant_lease()
                transaction = self._with_mark(lease, compare, success, failure)
                try:
                    reply = await self._gateway.call("kv/txn", transaction)
                except EtcdError as error:
                    if error.code != NOT_FOUND or await lease.exists():
                        raise
                    self._lease = None
                    continue
                if reply.get("succeeded"):
                    self._revision = revision_of(reply)
                    return self._revision, []
                mark, *results = [response["response_range"] for response in reply["responses"]]
                mark_entry = self._keys.entries(mark).get(self._name, NO_MARK)
                known_revision = self._revision
                self._revision = mark_entry.revision
                if mark_entry.value == self._value:
                    return mark_entry.revision, []
                if mark_entry.revision == known_revision:
                    return 0, results
                # An earlier transaction, which the client gave up, arrived late, or the mark has expired: retry.

    async def close(self) -> None:
        """Delete the mark. Raises CutOff."""
        if self._lease:
            await self._lease.revoke()

    @property
    def _value(self) -> bytes:
        return b"%d" % self._number

    def _with_mark(
        self,
        lease: EtcdLease,
        compare: Sequence[EtcdMessage],
        success: Sequence[EtcdMessage],
        failure: Sequence[EtcdMessage],
    ) -> EtcdMessage:
        return {
            "compare": [self._keys.compare(self._name, self._revision), *compare],
            "success": [self._keys.put(self._name, self._value, lease.number), *success],
            "failure": [self._keys.get(self._name), *failure],
        }

    async def _renew_or_grant_lease(self) -> EtcdLease:
        """The mark's lease, granted or renewed if necessary."""
        if self._lease and self._clock.now() - self._renewed > MARK_S / 2:
            try:
                await self._lease.renew()
            except LeaseLost:
                self._lease = None
        elif self._lease:
            return self._lease
        self._renewed = self._clock.now()
        self._lease = self._lease or await EtcdLease.grant(self._gateway, 1 + secrets.randbits(62), MARK_S)
        return self._lease
