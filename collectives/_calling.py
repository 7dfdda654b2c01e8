"""One call of a collective on one rank: its turn, and whom it has compared terms with.

    enter     wait for the group's turn; begin to watch the time
    greet     the first bytes to and from each peer bring the terms of both; other terms than ours end the call
    late      a call that waits longer than the group's `patience` looks round (see `collectives._inquest`)
    leave     give the turn back; who fails holds an inquest before

The one rule: nothing is sent beside the collective's own bytes, and no task or timer made, unless a call waits long or
fails.
"""

import asyncio
from typing import TYPE_CHECKING

from collectives._inquest import Inquest
from collectives._terms import GREETING_BYTES, Mismatch, greeting, told

if TYPE_CHECKING:
    from collectives._group import Group


class Call:
    """An async context in which a collective runs on a group; entered once.

    Args:
        group: whose ranks call it.
        terms: what all of them must mean alike, in words.
    Attributes:
        asked: the terms as the call began.
        number: how many calls of the group began before, and this one.
        task: in which it runs.
    Raises:
        BrokenGroup: an earlier call was left before its end; nothing was sent.
        Mismatch: ranks called it differently (both are named). PeerLost: a rank of the group was lost, wherever in the
            group that was seen. TransportError: another rank failed in this call.
    """

    __slots__ = ("_greeted", "_heard", "_inquest", "asked", "greeting", "group", "number", "task", "terms")

    def __init__(self, group: "Group", terms: str):
        self.group, self.asked = group, terms
        self.state(terms)
        self._greeted: set[int] = set()
        self._heard: set[int] = set()
        self._inquest: Inquest | None = None

    async def __aenter__(self) -> "Call":
        group = self.group
        if not group.turn.take_now():
            await group.turn.take()
        group.calls += 1
        group.call, self.number = self, group.calls
        self.task = asyncio.current_task()
        group.alarm.begin(self._late)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.group.alarm.end()
        try:
            if self._inquest is not None or error is not None:
                await self._find_out(error)
        finally:
            self.group.call = None
            self.group.turn.give((self._inquest and self._inquest.verdict) or error)

    def state(self, terms: str) -> None:
        """Say more exactly what this call is; before anything was sent."""
        self.terms, self.greeting = terms, greeting(terms)

    def greets(self, peer: int) -> bool:
        """Whether this rank of the transport has not been greeted yet; it counts as greeted from now on."""
        first = peer not in self._greeted
        self._greeted.add(peer)
        return first

    def hears(self, peer: int) -> bool:
        """Whether this peer's greeting is still to come; it counts as expected from now on."""
        first = peer not in self._heard
        self._heard.add(peer)
        return first

    def compare(self, peer: int, greeted: memoryview) -> None:
        """Raise Mismatch unless this peer's greeting says what ours says."""
        if greeted[:GREETING_BYTES] != self.greeting:
            raise Mismatch.between(self.group.transport.rank, self.terms, peer, told(greeted))

    def _late(self) -> None:
        if self.group.size > 1:
            self._inquest = Inquest(self)
            self._inquest.look_round()

    async def _find_out(self, error: BaseException | None) -> None:
        self._inquest = self._inquest or Inquest(self)
        await self._inquest.stop()
        if error is not None:
            await self._inquest.conclude(error)
