"""Which stage a peer that comes is to hold, from who is there and what it has on disk.

The one rule: whoever sees the same chooses the same, and each knows what all before it chose: of all who choose at once
the directory lets one pass, and the others look again. Must not know what a stage is, nor what is said with a choice.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable

from pipelined.clock import Clock
from pipelined.swarm.membership import Roster
from pipelined.swarm.rebalance import place
from pipelined.swarm.records import Phase

STAY = Phase.JOINING, Phase.SERVING
Claim = Callable[[int, int], Awaitable[bool]]
"""Say that this stage is chosen, if nobody has chosen since this revision of `PLACING`; whether it was."""


class Choosing:
    """One peer's choices.

    Args:
        name: of the peer.
    """

    def __init__(self, name: str, roster: Roster, clock: Clock):
        self._roster, self._clock, self._draw = roster, clock, random.Random(name)

    async def choose(self, best: Callable[[], int], claim: Claim) -> int:
        """Choose a stage knowing what all others chose before; returns it, once that is said.

        Who was too late lets others pass before it asks again, so many as a draw says from a range that doubles: so of
        all who come at once each asks a few times, not once for everybody who was faster.

        Args:
            best: the stage to choose, as the roster is now.
        """
        roster, clock, most = self._roster, self._clock, 1
        while True:
            seen, began, index = roster.placing_revision, clock.now(), best()
            if await claim(index, seen):
                return index
            await roster.wait_for(lambda seen=seen: roster.placing_revision != seen)
            most *= 2
            await self._let_pass(self._draw.randrange(most), clock.now() - began)

    async def _let_pass(self, others: int, answer_s: float) -> None:
        """Wait until so many others have chosen; half as many, whenever nobody does in the time of an answer."""
        roster = self._roster
        while others:
            seen = roster.placing_revision
            try:
                async with asyncio.timeout(answer_s):
                    await roster.wait_for(lambda seen=seen: roster.placing_revision != seen)
                others -= 1
            except TimeoutError:
                others //= 2


def stage_for(name: str, roster: Roster, stages: int, saved: Iterable[int]) -> int:
    """The first stage that nobody holds and that it has saved as it stands; else the one with the fewest peers.

    Args:
        name: of the peer; where it was before does not count.
        stages: of the model.
        saved: those whose present state lies at the peer.
    """
    lost = [stage for stage in saved if not roster.holding(stage)]
    if lost:
        return min(lost)
    there = [dict[str, float | None]() for _ in range(stages)]
    for peer in roster.peers.values():
        if peer.stage in range(stages) and peer.name != name and peer.phase in STAY:
            there[peer.stage][peer.name] = None
    return place(there)
