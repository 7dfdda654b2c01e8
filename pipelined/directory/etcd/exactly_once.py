"""Transactions that happen at most once. The rule: one that is asked for again is known by the mark it left.

etcd does what it is asked as often as it is asked. So each client has a key of its own, its mark: every transaction
expects the mark to be as its client last saw it, and puts its own number there. One that comes again finds the mark
changed, and by the number who changed it. The mark dies with a lease of the client.
"""

import asyncio
import math
import secrets
from collections.abc import Sequence

from pipelined.aio.clock import Clock
from pipelined.directory.api import Entry, LeaseLost
from pipelined.directory.etcd.gateway import NOT_FOUND, EtcdError, Gateway
from pipelined.directory.etcd.leases import EtcdLease
from pipelined.directory.etcd.messages import EtcdMessage, Keys, revision_of

MARK_S = 600.0
"""How long a mark outlives its client; the first transaction in the second half of it renews the lease."""
NO_MARK = Entry(b"", 0)


class Marks:
    """One client's mark, and its transactions, which go one after another.

    Args:
        namespace: of the marks of all clients.
    """

    def __init__(self, gateway: Gateway, clock: Clock, namespace: str):
        self._gateway, self._clock = gateway, clock
        self._keys, self._name = Keys(namespace), secrets.token_hex(8)
        self._number = self._revision = 0
        self._lease: EtcdLease | None = None
        self._renewed = -math.inf
        self._turn = asyncio.Lock()

    async def transact(
        self, compare: Sequence[EtcdMessage], success: Sequence[EtcdMessage], failure: Sequence[EtcdMessage]
    ) -> tuple[int, list[EtcdMessage]]:
        """Do it at most once.

        Returns: the revision of the change; or 0, and what `failure` asked for.
        Raises:
            EtcdError: as `Gateway.call`; NOT_FOUND is of a lease in `success`.
        """
        async with self._turn:
            self._number += 1
            while True:
                marked = await self._marked(compare, success, failure)
                try:
                    told = await self._gateway.call("kv/txn", marked)
                except EtcdError as error:
                    if error.code != NOT_FOUND or await self._lease.lives():
                        raise
                    self._lease = None
                    continue
                if told.get("succeeded"):
                    self._revision = revision_of(told)
                    return self._revision, []
                mark, *found = [each["response_range"] for each in told["responses"]]
                left, known = self._keys.entries(mark).get(self._name, NO_MARK), self._revision
                self._revision = left.revision
                if left.value == self._value:
                    return left.revision, []
                if left.revision == known:
                    return 0, found
                # A transaction that was given up has come after all, or the mark has died; ask again.

    async def close(self) -> None:
        """Take the mark away. Raises CutOff."""
        if self._lease:
            await self._lease.revoke()

    @property
    def _value(self) -> bytes:
        return b"%d" % self._number

    async def _marked(self, *parts: Sequence[EtcdMessage]) -> EtcdMessage:
        compare, success, failure = parts
        lease = await self._living()
        return {
            "compare": [self._keys.compare(self._name, self._revision), *compare],
            "success": [self._keys.put(self._name, self._value, lease.number), *success],
            "failure": [self._keys.get(self._name), *failure],
        }

    async def _living(self) -> EtcdLease:
        """The mark's lease, which lives for long enough."""
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
