"""Which stage a peer that comes is to hold, from who is there and what they have on disk.

The one rule: each chooses knowing what all before it choose, and nobody waits for another. For who comes says so first,
which gives all an order, and then works out where those before it go who have not said it yet: whoever sees the same
chooses the same. Must not know what a stage is, nor what is said with a choice.
"""

from collections.abc import Iterator, Sequence

from pipelined.swarm.membership import Roster
from pipelined.swarm.rebalance import fewest
from pipelined.swarm.records import CAME, Peer, Phase
from pipelined.swarm.standing import Standing

STAY = Phase.JOINING, Phase.SERVING


class Choosing:
    """One peer's choices.

    Args:
        name: of the peer.
        stages: of the model.
    """

    def __init__(self, name: str, roster: Roster, stages: int):
        self._name, self._roster, self._stages = name, roster, stages

    async def choose(self, place: Standing) -> int:
        """Say that this peer comes, and choose a stage.

        Raises:
            LeaseLost, CutOff: as `Directory.transact`.
        """
        came = await self._roster.directory.transact({}, {CAME + self._name: b""}, lease=place.lease)
        await self._roster.wait_for(lambda: self._roster.revision >= came)
        return stage_for(self._name, self._roster, self._stages)


def stage_for(name: str, roster: Roster, stages: int) -> int:
    """The first stage that nobody holds and that it has saved as it stands; else the one with the fewest peers.

    Args:
        name: of the peer; where it was before does not count.
        stages: of the model.
    Cost: O(peers · stages).
    """
    there = [0] * stages
    for peer in _chosen_before(name, roster):
        if peer.stage in range(stages) and peer.phase in STAY:
            there[peer.stage] += 1
    lost = [stage for stage in range(stages) if not roster.holding(stage)]
    for other in _choosing_before(name, roster):
        there[_choice(other, roster, lost, there)] += 1
    return _choice(name, roster, lost, there)


def _chosen_before(name: str, roster: Roster) -> Iterator[Peer]:
    """The others that have said where they are; who came later does not count, whichever is faster."""
    came = roster.came.get(name, roster.revision + 1)
    for peer in roster.peers.values():
        if peer.name != name and roster.came.get(peer.name, 0) < min(came, roster.announced[peer.name]):
            yield peer


def _choosing_before(name: str, roster: Roster) -> list[str]:
    """Those that came before and have yet to say where they go, in this order."""
    came = roster.came.get(name, roster.revision + 1)
    choosing = [(at, other) for other, at in roster.came.items() if roster.announced[other] < at < came]
    return [other for _, other in sorted(choosing)]


def _choice(name: str, roster: Roster, lost: Sequence[int], there: Sequence[int]) -> int:
    saved = _saved(name, roster, len(there)) if lost else set[int]()
    return next((stage for stage in lost if stage in saved), fewest(there))


def _saved(name: str, roster: Roster, stages: int) -> set[int]:
    """The stages whose present state lies at a peer, where that is not all of them."""
    told, point = roster.saved.get(name), roster.head.point if roster.head else None
    marks = told.all() if told else []
    mine = {mark.stage for mark in marks if mark.point == point and mark.stages == stages}
    return mine if len(mine) < stages else set()
