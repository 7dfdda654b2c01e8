"""Being struck from the directory by the leader, and coming again.

A peer that was struck out is no member, and keeps what it has. The leader writes in the directory that its name is to
stay away (`evicted/NAME`); that key ends by itself, each time after a longer pause. The peer comes again when it has
ended, and when the step is taken that it held up, so that no step is held up by one peer twice. Where no other peer
serves its stage it comes at once. A process that is started again under the name waits as well.
"""

from collections.abc import Callable
from contextlib import suppress

from pipelined.aio.clock import Clock
from pipelined.aio.events import warn
from pipelined.directory import Conflict
from pipelined.directory.registration import Standing
from pipelined.membership.view import MembershipView, NoLongerValid
from pipelined.swarm.records import EVICTED

LOOKS = 4
"""Looks at whether the pause is over, in the time of a lease."""


class Struck(Exception):
    """This process's record was struck from the directory, and its lease lives."""


class Returning:
    """One peer's way back.

    Args:
        name: of the peer.
        lease_s: seconds of a lease.
    """

    def __init__(self, name: str, view: MembershipView, clock: Clock, lease_s: float):
        self._name, self._view, self._clock, self._lease_s = name, view, clock, lease_s

    def is_member(self, place: Standing) -> bool:
        """Whether the directory has the peer, if it was told of it."""
        view = self._view
        return self._name in view.peers or not place.revision or view.revision < place.revision

    async def check(self, place: Standing) -> None:
        """Find out why it has it no more.

        Raises:
            LeaseLost: its lease ended, and the record with it. Struck: only the record is gone. CutOff.
        """
        await place.lease.renew()
        raise Struck

    async def wait_for_step(self, needed: Callable[[], bool]) -> None:
        """Let the others take the step that was held up, unless this peer is needed."""
        seen = self._view.head_revision
        with suppress(NoLongerValid):
            async with self._view.while_holds(lambda: not needed()):
                await self._view.wait_for(lambda: self._view.head_revision != seen)

    async def stay_away(self, needed: Callable[[], bool]) -> None:
        """Wait for as long as the directory says that this name is evicted, unless this peer is needed.

        Raises: CutOff.
        Cost: one small question, and while the name is evicted `LOOKS` in the time of a lease.
        """
        with suppress(NoLongerValid):
            async with self._view.while_holds(lambda: not needed()):
                told = False
                while await self._is_evicted():
                    if not told:
                        warn("kept away", peer=self._name, why="the leader evicted it; it comes again after a pause")
                    told = True
                    await self._clock.sleep(self._lease_s / LOOKS)

    async def _is_evicted(self) -> bool:
        try:
            await self._view.directory.transact({EVICTED + self._name: 0}, {})
        except Conflict:
            return True
        return False
