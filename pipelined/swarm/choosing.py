"""Which stage a peer that comes is to hold, from who is there and what it has on disk. Nothing is decided in here.

The one rule: whoever sees the same chooses the same. That each knows what all before it chose, the directory sees to.
"""

from collections.abc import Iterable

from pipelined.swarm.membership import Roster
from pipelined.swarm.rebalance import place
from pipelined.swarm.records import Phase

STAY = Phase.JOINING, Phase.SERVING


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
