"""The real directory asked without a network, for swarms too large and days too long to send every renewal.

The rule: what callers see is what the state machine of the embedded directory decides. Those who live renew their
leases thrice in their time, all at the same moments; this is made up for when somebody looks, as a renewal in time
changes nothing that anybody can see. This file must not know who holds a lease.
"""

from collections.abc import AsyncIterator, Mapping, Sequence

from pipelined.clock import Clock
from pipelined.swarm.bell import Bell
from pipelined.swarm.directory import Change, Directory, Lease, View
from pipelined.swarm.directory.asked import Request
from pipelined.swarm.directory.keeping import RENEWALS
from pipelined.swarm.directory.machine import Machine


class DirectDirectory(Directory):
    """A directory and its one client."""

    def __init__(self, clock: Clock):
        self._machine, self._clock, self._changed = Machine(name=1), clock, Bell()
        self._client, self._asked = self._machine.enter(), 0
        self._kept: dict[int, Lease] = {}

    @property
    def revision(self) -> int:
        """Of the last change."""
        return self._machine.revision

    def keep(self, lease: Lease) -> None:
        """Its holder lives, and renews it from now on."""
        self._kept[lease.number] = lease

    def forsake(self, lease: Lease) -> None:
        """Its holder dies; the last renewal was when all who live renewed."""
        del self._kept[lease.number]
        self._machine.renew(lease.number, _renewed(lease, self._clock.now()))

    def catch_up(self) -> None:
        """End the leases whose time has come. Cost: nothing, or one renewal for each lease kept."""
        due, now = self._machine.due(), self._clock.now()
        if due is not None and due <= now:
            for lease in self._kept.values():
                self._machine.renew(lease.number, _renewed(lease, now))
            self._machine.expire(now)
            self.announce()

    async def read(self, prefix: str = "") -> View:
        self.catch_up()
        return self._machine.read(prefix)

    async def transact(
        self,
        expect: Mapping[str, int],
        put: Mapping[str, bytes],
        delete: Sequence[str] = (),
        lease: Lease | None = None,
    ) -> int:
        if lease is None or lease.number not in self._kept:
            self.catch_up()
        revision = self._machine.transact(self._request(), expect, put, delete, lease.number if lease else 0)
        self.announce()
        return revision

    async def watch(self, prefix: str, after: int) -> AsyncIterator[Sequence[Change]]:
        while True:
            for changes in (told := self._machine.changes(prefix, after)):
                after = changes[0].revision
                yield changes
            if not told:
                await self._changed.wait()

    async def grant(self, seconds: float) -> Lease:
        number = self._machine.grant(self._request(), seconds, self._clock.now())
        return DirectLease(self, self._machine, self._clock, number, seconds)

    async def close(self) -> None:
        """Nothing is held."""

    def announce(self) -> None:
        """Tell those who watch of what was done."""
        if self._machine.deeds:
            self._machine.deeds.clear()
            self._changed.ring()

    def _request(self) -> Request:
        self._asked += 1
        return Request(self._client, self._asked, self._asked)


class DirectLease(Lease):
    """A lease of it."""

    def __init__(self, directory: DirectDirectory, machine: Machine, clock: Clock, number: int, seconds: float):
        self.number, self.seconds = number, seconds
        self._directory, self._machine, self._clock = directory, machine, clock

    async def renew(self) -> None:
        self._directory.catch_up()
        self._machine.renew(self.number, self._clock.now())

    async def revoke(self) -> None:
        self._directory.catch_up()
        self._machine.revoke(self.number)
        self._directory.announce()


def _renewed(lease: Lease, now: float) -> float:
    """When those who live now last renewed."""
    every = lease.seconds / RENEWALS
    return now // every * every
