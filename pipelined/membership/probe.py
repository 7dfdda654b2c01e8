"""Whether this process can reach a member, at any load of the member.

A probe is a request that costs nothing, repeated beside all other work. A member that answers none for longer than a
lease is unreachable from here, even if the directory reaches it; a slow one is not. Only time in which this process ran
counts: while it was stopped it could not receive.
"""

from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from pipelined.aio.clock import Clock
from pipelined.aio.nursery import Nursery, beside
from pipelined.aio.timeouts import with_timeout
from pipelined.membership.client import Asking
from pipelined.membership.view import NoLongerValid
from pipelined.swarm.records import Peer
from transports.rpc import Rejected

T = TypeVar("T")
SILENCE_LEASES = 1.5
"""Leases without an answer: a member that answers no process has lost its lease by then."""
SLICES = 8
"""Parts in which time is counted; a stop of the process counts as one of them at most."""


class Lived:
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

    def __init__(self, asking: Asking, clock: Clock, lease_s: float):
        self._asking, self.clock, self.patience_s = asking, Lived(clock), SILENCE_LEASES * lease_s

    async def reaches(self, who: Peer) -> bool:
        """Whether a member answers in time; True for a process that is no member any more."""
        with suppress(Rejected):  # that is an answer
            try:
                await with_timeout(self.clock, self.patience_s, self._asking.insist(who, "status"))
            except TimeoutError:
                return False
        return True

    async def unreachable(self, members: Iterable[Peer]) -> list[str]:
        """The names of the members that do not answer in time; all are asked at once."""
        async with Nursery() as tasks:
            reached = {member.name: tasks.create_task(self.reaches(member)) for member in members}
        return [name for name, task in reached.items() if not task.result()]

    async def while_reachable(self, who: Peer, work: Coroutine[Any, Any, T]) -> T:
        """The result of work with a member, while it can be reached.

        Raises:
            NoLongerValid: it cannot be reached.
        """
        return await beside(self._listen(who), work)

    async def _listen(self, who: Peer) -> None:
        while await self.reaches(who):
            await self.clock.sleep(self.patience_s)
        raise NoLongerValid(f"{who.name} is silent")
