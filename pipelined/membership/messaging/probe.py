"""Probes: whether a member can be reached from here.

A probe is a request that the member answers at once, beside all other work; it is repeated until a reply comes. A
member that replies to no probe for longer than a lease is unreachable from here, even if the directory reaches it; a
slow member is not. Only time in which this process ran counts, because a stopped process cannot receive.
"""

from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from pipelined.aio.clock import Clock
from pipelined.aio.tasks import beside, with_timeout
from pipelined.membership.messaging.client import MemberClient, MemberUnreachable
from pipelined.membership.messaging.messages import Ping
from pipelined.membership.view import Member
from transports import Nursery
from transports.rpc import Rejected

T = TypeVar("T")
SILENCE_LEASES = 1.5
"""Lease periods without a reply after which a member is unreachable. A dead member has lost its lease before that."""
SLICES = 8
"""Slices in which time is counted; a stop of the process counts as at most one slice."""


class RunningTimeClock:
    """A clock with sleeps that count only the time in which this process ran."""

    def __init__(self, clock: Clock):
        self.now, self._clock = clock.now, clock

    async def sleep(self, seconds: float) -> None:
        """Sleep until the process ran for this many seconds."""
        for _ in range(SLICES):
            await self._clock.sleep(seconds / SLICES)


class Probe:
    """The probes that one process sends.

    Args:
        lease_s: seconds of a member's lease.
    """

    def __init__(self, client: MemberClient, clock: Clock, lease_s: float):
        self.client = client
        self.clock = RunningTimeClock(clock)
        self.patience_s = SILENCE_LEASES * lease_s

    async def reaches(self, member: Member) -> bool:
        """Whether a member replies in time; also True if the process has left the swarm."""
        with suppress(Rejected):  # a rejection is a reply, too
            try:
                await with_timeout(self.clock, self.patience_s, self.client.request_until_reply(member, Ping()))
            except TimeoutError:
                return False
        return True

    async def find_unreachable(self, members: Iterable[Member]) -> list[str]:
        """The names of the members that do not reply in time; all are probed at once."""
        async with Nursery() as tasks:
            reached = {member.name: tasks.create_task(self.reaches(member)) for member in members}
        return [name for name, task in reached.items() if not task.result()]

    async def while_reachable(self, member: Member, work: Coroutine[Any, Any, T]) -> T:
        """Run work with a member and return its result; cancel the work if the member becomes unreachable.

        Raises:
            MemberUnreachable: it replied to no probe for `patience_s`.
        """
        return await beside(work, self._watch_reachability(member))

    async def _watch_reachability(self, member: Member) -> None:
        while await self.reaches(member):
            await self.clock.sleep(self.patience_s)
        raise MemberUnreachable(f"{member.name} is unreachable")
