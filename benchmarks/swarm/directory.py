"""The real directory called without a network, for swarms too large and days too long to send every renewal.

The state machine of the embedded directory decides everything that callers see. A renewal in time changes nothing
visible, so the lease of a live holder is not renewed but has no end, until its holder dies.
"""

import math
from collections.abc import AsyncIterator, Mapping, Sequence

from pipelined.aio.clock import VirtualClock
from pipelined.aio.tasks import Notifier
from pipelined.membership.directory import Change, Directory, Lease, Prefixes, Snapshot
from pipelined.membership.directory.api import RENEWALS
from pipelined.membership.directory.messages import RequestId
from pipelined.membership.directory.server.state_machine import StateMachine


class DirectDirectory(Directory):
    """A directory and its one client.

    Attributes:
        machine: which decides.
    """

    def __init__(self, clock: VirtualClock):
        self.machine, self._clock, self._changed = StateMachine(name=1), clock, Notifier()
        self._client, self._asked = self.machine.enter(), 0

    def keep(self, lease: Lease) -> None:
        """Its holder lives, and renews it from now on: thrice in its time, when all others do."""
        self.machine.renew(lease.number, math.inf)

    def forsake(self, lease: Lease) -> None:
        """Its holder dies; it renewed last when all did."""
        every = lease.seconds / RENEWALS
        end = self._clock.now() // every * every + lease.seconds
        self.machine.shorten(lease.number, end)
        self.look_at(end)

    def look_at(self, moment: float) -> None:
        """End then what has run out."""
        self._clock.call_at(moment, self._catch_up)

    def wake_watchers(self) -> None:
        """Wake the watchers, if anything has changed."""
        if self.machine.transitions:
            self.machine.transitions.clear()
            self._changed.notify_all()

    async def read(self, prefix: Prefixes = "") -> Snapshot:
        self._catch_up()
        return self.machine.read(prefix)

    async def transact(
        self,
        expect: Mapping[str, int],
        put: Mapping[str, bytes],
        delete: Sequence[str] = (),
        lease: Lease | None = None,
    ) -> int:
        self._catch_up()
        revision = self.machine.transact(self._request(), expect, put, delete, lease.number if lease else 0)
        self.wake_watchers()
        return revision

    async def watch(self, prefix: Prefixes, after: int) -> AsyncIterator[Sequence[Change]]:
        while True:
            if seen := self.machine.changes(prefix, after):
                after = seen[-1][0].revision
                yield [change for changes in seen for change in changes]
            else:
                await self._changed.wait()

    async def grant(self, seconds: float, lasting: bool = False) -> Lease:
        now = self._clock.now()
        number = self.machine.grant(self._request(), seconds, now)
        self.look_at(now + seconds)
        return DirectLease(self, self._clock, number, seconds)

    async def close(self) -> None:
        """Nothing is held."""

    def _request(self) -> RequestId:
        self._asked += 1
        return RequestId(self._client, self._asked, self._asked)

    def _catch_up(self) -> None:
        self.machine.expire(self._clock.now())
        self.wake_watchers()


class DirectLease(Lease):
    """A lease of it."""

    def __init__(self, directory: DirectDirectory, clock: VirtualClock, number: int, seconds: float):
        self.number, self.seconds = number, seconds
        self._directory, self._clock = directory, clock

    async def renew(self) -> None:
        now = self._clock.now()
        self._directory.machine.renew(self.number, now)
        self._directory.look_at(now + self.seconds)

    async def revoke(self) -> None:
        self._directory.machine.revoke(self.number)
        self._directory.wake_watchers()
