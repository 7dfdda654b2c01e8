"""Whether a member can be reached from here, whatever else it is doing.

The one rule: silence counts, not slowness. A question that costs nothing is asked again and again, beside all that is
under way; who answers none for longer than a lease cannot be reached, though the directory may reach it. Only time that
this process lived is counted: who was stopped meanwhile has not listened. Knows members; it must not know what they do.
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
"""Leases of silence: who is silent to all is gone by then, and everybody knows it."""
SLICES = 8
"""Parts in which time is counted; however long a process was stopped, it counts as one of them."""


class Lived:
    """A clock whose sleeps end when this process has lived so long."""

    def __init__(self, clock: Clock):
        self.now, self._clock = clock.now, clock

    async def sleep(self, seconds: float) -> None:
        """Let this much time of the process's own pass."""
        for _ in range(SLICES):
            await self._clock.sleep(seconds / SLICES)


class Hearing:
    """One process's ear.

    Args:
        lease_s: seconds of a member's lease.
    """

    def __init__(self, asking: Asking, clock: Clock, lease_s: float):
        self._asking, self.clock, self.patience_s = asking, Lived(clock), SILENCE_LEASES * lease_s

    async def hears(self, who: Peer) -> bool:
        """Whether a member answers in time; True of who is none any more."""
        with suppress(Rejected):  # that is an answer
            try:
                await with_timeout(self.clock, self.patience_s, self._asking.insist(who, "status"))
            except TimeoutError:
                return False
        return True

    async def silent(self, members: Iterable[Peer]) -> list[str]:
        """The names of those who do not answer in time; all are asked at once."""
        async with Nursery() as tasks:
            heard = {member.name: tasks.create_task(self.hears(member)) for member in members}
        return [name for name, task in heard.items() if not task.result()]

    async def while_heard(self, who: Peer, work: Coroutine[Any, Any, T]) -> T:
        """What is done with a member, for as long as it can be reached.

        Raises:
            NoLongerValid: it cannot.
        """
        return await beside(self._listen(who), work)

    async def _listen(self, who: Peer) -> None:
        while await self.hears(who):
            await self.clock.sleep(self.patience_s)
        raise NoLongerValid(f"{who.name} is silent")
