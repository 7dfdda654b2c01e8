"""Being struck from the directory by who leads, and coming again.

The one rule: who is struck out is no member, and keeps what it has. It comes again when the step is taken that it held
up, so that no step is held up by anybody twice; and after a while, that is longer each time that follows soon. Where
nobody else serves its stage it comes at once.
"""

from collections.abc import Callable
from contextlib import suppress

from pipelined.clock import Clock
from pipelined.swarm.bans import MOST_S, Bans
from pipelined.swarm.membership import Ended, Roster
from pipelined.swarm.standing import Standing
from transports.endpoints import Party


class Struck(Exception):
    """This process's record was struck from the directory, and its lease lives."""


class Returning:
    """One peer's way back.

    Args:
        name: of the peer.
        lease_s: seconds of a lease: how long it first stays away.
    """

    def __init__(self, name: str, roster: Roster, clock: Clock, lease_s: float):
        self._name, self._roster, self._clock = name, roster, clock
        self._bans = Bans(lease_s, max(MOST_S, lease_s))

    def is_member(self, place: Standing) -> bool:
        """Whether the directory has the peer, if it was told of it."""
        roster = self._roster
        return self._name in roster.peers or not place.revision or roster.revision < place.revision

    async def check(self, place: Standing) -> None:
        """Find out why it has it no more.

        Raises:
            LeaseLost: its lease ended, and the record with it. Struck: only the record is gone. CutOff.
        """
        await place.lease.renew()
        raise Struck

    async def stay_away(self, place: Standing, needed: Callable[[], bool]) -> None:
        """Let others go on without it, unless it is needed."""
        roster, now, seen = self._roster, self._clock.now(), self._roster.head_revision
        left = self._bans.ban(Party(self._name, place.incarnation), now) - now
        with suppress(Ended):
            async with roster.as_long_as(lambda: not needed()):
                await self._clock.sleep(left)
                await roster.wait_for(lambda: roster.head_revision != seen)
