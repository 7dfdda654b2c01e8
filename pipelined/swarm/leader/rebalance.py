"""Which peers change stage to balance the load, from the peers' loads alone, and how often the leader looks at them.

A peer goes from the least loaded stage to the most loaded one, and only where the one that gives stays less loaded than
the other was, with half a peer to spare: so every move makes the slowest stage faster, nothing moves back, and a
balanced swarm moves no peer. The same loads give the same decision.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pipelined.aio.clock import Clock

BAND_PEERS, BAND_SHARE = 0.5, 0.05
"""What the stage that gives must have to spare beyond the peer itself: parts of a peer, and of all that it has."""

Stage = Mapping[str, float | None]
"""The peers of a stage and their loads: up to 1 the part of a peer that is in use, beyond it the length of its queue.

None: on its way, or not measured yet.
"""


def moves(stages: Sequence[Stage]) -> dict[str, int]:
    """The peer that is to move now, with the stage where it goes; empty where the swarm is balanced.

    The least loaded peer of the least loaded stage that can spare one goes to the most loaded stage; a stage without
    peers is served first. No stage ever gives its last peer that serves.

    Args:
        stages: by number.
    Cost: O(peers).
    Source: SWARM, Appendix D, Algorithm 2, with line 22's DHT[s] read as that of the stage of minimum load.
    """
    states = _states(stages)
    *sources, target = sorted(range(len(states)), key=lambda at: (*states[at].order, -at))
    for source in sources:
        if states[source].can_spare_one(states[target].load):
            loads = _measured(stages[source])
            return {min(loads, key=lambda peer: (loads[peer], peer)): target}
    return {}


class _State(NamedTuple):
    """What a stage has.

    Args:
        peers: also those on their way.
        used: how many peers' worth of work it does.
        queue: mean load, not cut off at 1.
        serving: peers that are not on their way.
    """

    peers: int
    used: float
    queue: float
    serving: int

    @property
    def load(self) -> float:
        """The part of its peers that is in use; infinite of a stage without peers."""
        return self.used / self.peers if self.peers else math.inf

    @property
    def order(self) -> tuple[float, float, int]:
        """Less where it is less loaded; of stages alike where queues are shorter, then where there are more peers."""
        return self.load, self.queue, -self.peers

    def can_spare_one(self, load: float) -> bool:
        """Whether it stays below a load without one of its peers, with some to spare."""
        left = self.peers - 1 - max(BAND_PEERS, BAND_SHARE * self.peers)
        return self.serving > 1 and (math.isinf(load) or self.used <= load * left)


def _states(stages: Sequence[Stage]) -> list[_State]:
    """What all stages have; one at which no peer is measured is taken to do as much as the others."""
    measured = [list(_measured(stage).values()) for stage in stages]
    used = [sum(min(load, 1.0) for load in loads) if loads else None for loads in measured]
    ordinary = statistics.median([each for each in used if each is not None] or [1.0])
    return [
        _State(len(stage), ordinary if work is None else work, sum(loads) / max(1, len(loads)), len(loads))
        for stage, loads, work in zip(stages, measured, used, strict=True)
    ]


def _measured(stage: Stage) -> dict[str, float]:
    return {peer: load for peer, load in stage.items() if load is not None}


Moves = Callable[[Sequence[Mapping[str, float | None]]], Mapping[str, int]]
"""From each peer's load by stage (None: on its way there) to the new stages of the peers that move."""


class RebalanceTimer:
    """When one leader compares the loads of the stages.

    A peer that moved at one comparison does not move at the next.

    Args:
        moves: decides which peers change stage.
        every: seconds from one comparison to the next; 0: never.
    """

    def __init__(self, moves: Moves, every: float, clock: Clock):
        self._moves, self._every, self._clock = moves, every, clock
        self._looked, self._moved = clock.now(), set[str]()

    def due(self, coming: Sequence[Mapping[str, None]], loads: Sequence[Mapping[str, float]]) -> dict[str, int]:
        """The new stages, by name, of the peers that move now.

        Args:
            coming: by stage, the peers on their way there.
            loads: by stage, the loads that its peers reported.
        """
        now = self._clock.now()
        if not self._every or now - self._looked < self._every:
            return {}
        self._looked = now
        moves = self._moves([there | here for there, here in zip(coming, loads, strict=True)])
        moved, self._moved = self._moved, set(moves)
        return {name: stage for name, stage in moves.items() if name not in moved}
