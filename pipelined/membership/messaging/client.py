"""Requests to members: they end when the receiver leaves the system; probes show whether it can be reached.

A request to a member names the incarnation of its receiver. It fails as soon as the directory shows that this
incarnation is gone.

A probe is a request that the member answers at once, beside all other work; it is repeated until a reply comes. A
member that replies to no probe for longer than a lease is unreachable from here, even if the directory reaches it; a
slow member is not. Only time in which this process ran counts, because a stopped process cannot receive.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from pipelined.aio.clock import Clock
from pipelined.aio.tasks import beside, with_timeout
from pipelined.membership.messaging.messages import MemberRequest, Ping, Reply, send
from pipelined.membership.view import RETRY_S, Member, MembershipView, NoLongerValid
from transports import Nursery
from transports.rpc import Endpoint, Rejected, Unreachable


class MemberGone(NoLongerValid):
    """The directory does not list this incarnation of the member any more."""


class MemberUnreachable(NoLongerValid):
    """No connection to the member, or no reply to probes."""


class ReplyLate(NoLongerValid):
    """The member did not reply in time."""


class MemberClient:
    """Sends the requests of one process to members."""

    def __init__(self, endpoint: Endpoint, view: MembershipView):
        self._endpoint, self._view = endpoint, view

    async def request(self, member: Member, request: MemberRequest[Reply], limit: float | None = None) -> Reply:
        """Send a request to a member, addressed to the incarnation in its record.

        Args:
            limit: time-out in seconds.
        Raises:
            MemberGone, MemberUnreachable, ReplyLate: whether the member carried out the request is unknown.
            Rejected: by the member's handler, or Malformed: its reply cannot be read.
        """
        try:
            async with self._view.while_holds(lambda: self._view.is_present(member)) as scope:
                if limit is not None:
                    scope.reschedule(asyncio.get_running_loop().time() + limit)
                return await send(self._endpoint, member.address, request, member.incarnation)
        except Unreachable as error:
            raise MemberUnreachable(str(error)) from error
        except NoLongerValid as error:
            if limit is not None and self._view.is_present(member):
                raise ReplyLate(f"no reply to {request.topic} in {limit:.3g} s") from error
            raise MemberGone(f"{member.name} has left") from error

    async def request_while(self, condition: Callable[[], bool], address: str, request: MemberRequest[Reply]) -> Reply:
        """Send a request to any incarnation of the member at this address, while a condition on the view holds.

        Raises:
            NoLongerValid: the condition does not hold any more.
            Rejected: by its handler, or Malformed: its reply cannot be read. Unreachable: as `Endpoint.request`.
        """
        async with self._view.while_holds(condition):
            return await send(self._endpoint, address, request)

    async def request_until_reply(self, member: Member, request: MemberRequest[Any]) -> None:
        """Repeat a request until a reply comes or the member is gone.

        Raises:
            Rejected: by the member's handler.
        """
        while self._view.is_present(member):
            with suppress(NoLongerValid):
                await self.request(member, request)
                return
            await self._view.next_change(RETRY_S)


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
            probes = {member.name: tasks.create_task(self.reaches(member)) for member in members}
        return [name for name, task in probes.items() if not task.result()]

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
