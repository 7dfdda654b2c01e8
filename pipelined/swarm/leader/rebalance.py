"""Which peers change stage to balance the load, from the peers' loads alone, and how often the leader compares them.

A peer moves from the least loaded stage to the most loaded one. It moves only if its stage, with half a peer to spare,
stays less loaded than the other stage was. So every move makes the slowest stage faster, no move is reversed, and a
balanced swarm moves no peer. The same loads give the same decision.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pipelined.aio.clock import Clock

BAND_PEERS, BAND_SHARE = 0.5, 0.05
"""Spare capacity that the giving stage must keep beyond the moved peer: in peers, and as a share of all its peers."""

Stage = Mapping[str, float | None]
"""The peers of a stage and their loads. Up to 1: the share of the peer in use. Above 1: the length of its queue.

None: the peer is on its way, or not measured yet.
"""


def moves(stages: Sequence[Stage]) -> dict[str, int]:
    """The peer that moves now, with its new stage; empty where the swarm is balanced.

    The least loaded peer of the least loaded stage that can spare one moves to the most loaded stage. A stage without
    peers is served first. No stage gives its last serving peer.

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
    """The peers and the work of one stage.

    Args:
        peers: number of peers, including those on their way.
        used: work of the stage, in peers.
        queue: mean load, not cut off at 1.
        serving: number of peers that are not on their way.
    """

    peers: int
    used: float
    queue: float
    serving: int

    @property
    def load(self) -> float:
        """The share of its peers that is in use; infinite for a stage without peers."""
        return self.used / self.peers if self.peers else math.inf

    @property
    def order(self) -> tuple[float, float, int]:
        """Sort key from least to most loaded: by load, then by length of queues, then by falling number of peers."""
        return self.load, self.queue, -self.peers

    def can_spare_one(self, load: float) -> bool:
        """Whether the stage stays below a load without one of its peers, with capacity to spare."""
        left = self.peers - 1 - max(BAND_PEERS, BAND_SHARE * self.peers)
        return self.serving > 1 and (math.isinf(load) or self.used <= load * left)


def _states(stages: Sequence[Stage]) -> list[_State]:
    """The state of all stages. A stage without a measured peer counts with the median work of the others."""
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
        moves = self._moves([{**there, **here} for there, here in zip(coming, loads, strict=True)])
        moved, self._moved = self._moved, set(moves)
        return {name: stage for name, stage in moves.items() if name not in moved}
