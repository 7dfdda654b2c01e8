"""Which peer goes to another stage, and where a newcomer goes: from the peers' loads alone.

The rule: from the least loaded stage to the most loaded one, and only where the one that gives stays less loaded than
the other was, with half a peer to spare: so the slowest stage gets faster with every move, nothing moves back, and a
balanced swarm moves nobody. Whoever is told the same decides the same. This file must not know how loads are measured,
what time it is, or how a peer moves.
"""

import random
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

PERIOD_S = 300.0
"""Seconds between two looks (SWARM, section 4.3)."""
JITTER = 0.1
BAND_PEERS, BAND_SHARE = 0.5, 0.05
"""What the stage that gives must have to spare beyond the peer itself: parts of a peer, and of all that it has."""

Stage = Mapping[str, float | None]
"""The peers of a stage and their loads: up to 1 the part of a peer that is in use, beyond it the length of its queue.

None: on its way, or not measured yet.
"""


class Move(NamedTuple):
    """A peer that is to go from one stage to another."""

    peer: str
    source: int
    target: int


def moves(
    stages: Sequence[Stage], speeds: Mapping[str, float] | None = None, resting: Collection[str] = (), most: int = 1
) -> list[Move]:
    """Who is to go where now.

    Peers go from the least loaded stage that can spare one to the most loaded: the least loaded of its peers, or, if
    that one is so fast that the stage could not do without it, the next. A stage without peers is served first.

    Args:
        stages: by number.
        speeds: microbatches that peers did in a busy second, where known; only ratios within a stage count. Peers
            without one are like the mean of their stage.
        resting: peers that are to stay where they are, as they came there a short while ago.
        most: moves at a time.

    Returns: at most `most`; none where the swarm is balanced. No stage ever gives its last peer that serves.
    Cost: O(peers) a move.
    Source: SWARM, Appendix D, Algorithm 2, with line 22's DHT[s] read as that of the stage of minimum load.
    """
    decided: list[Move] = []
    stages = [dict(stage) for stage in stages]
    for _ in range(most):
        states = _states(stages, speeds or {})
        move = _move(stages, states, resting)
        if move is None:
            break
        decided.append(move)
        _carry_out(move, stages, states[move.source])
    return decided


def place(stages: Sequence[Stage], speeds: Mapping[str, float] | None = None) -> int:
    """The stage for a newcomer: the most loaded one.

    Those on their way count as if they served, so that many who come at once do not all go to the same stage; what they
    will find at a stage where nobody serves is taken to be as much as elsewhere. Among stages as loaded it is the one
    with the longest queues, then with the fewest peers, then the first.
    """
    return _by_load(_states(stages, speeds or {}))[-1]


def fewest(peers: Sequence[int]) -> int:
    """Where `place` sends a newcomer while nothing is measured, from how many are, or are to be, at each stage."""
    return peers.index(min(peers))


def pause(period: float = PERIOD_S, seed: Any = 0, jitter: float = JITTER) -> float:
    """Seconds to the next look: the period, more or less by up to a share of it that the seed decides.

    With it, looks fall into step neither with the training's own period nor with other swarms at the same directory.
    """
    return period * random.Random(str(seed)).uniform(1 - jitter, 1 + jitter)


class _State(NamedTuple):
    """What a stage has.

    Args:
        speeds: of its peers.
        capacity: the sum of them.
        used: how much of it is in use.
        queue: mean load, not cut off at 1.
        serving: peers that are not on their way.
    """

    speeds: Mapping[str, float]
    capacity: float
    used: float
    queue: float
    serving: int

    @property
    def load(self) -> float:
        return self.used / self.capacity if self.speeds else float("inf")

    def can_spare(self, own: float, load: float) -> bool:
        """Whether it stays below a load without a peer of this speed, with some to spare: a slower one rather."""
        if self.serving < 2:
            return False
        left = self.capacity - own - max(BAND_PEERS * own, BAND_SHARE * self.capacity)
        return load == float("inf") or self.used <= load * left


def _states(stages: Sequence[Stage], speeds: Mapping[str, float]) -> list[_State]:
    known, loads = [_speeds(stage, speeds) for stage in stages], [_measured(stage) for stage in stages]
    work = [_work(own, measured) for own, measured in zip(known, loads, strict=True)]
    ordinary = statistics.median([each for each in work if each is not None] or [1.0])
    return [
        _state(own, measured, ordinary if each is None else each)
        for own, measured, each in zip(known, loads, work, strict=True)
    ]


def _state(speeds: Mapping[str, float], loads: Mapping[str, float], work: float) -> _State:
    mean = _mean(speeds.values(), 1.0)
    return _State(speeds, sum(speeds.values()), work * mean, _mean(loads.values(), 0.0), len(loads))


def _work(speeds: Mapping[str, float], loads: Mapping[str, float]) -> float | None:
    """How many peers' worth of work a stage does; None where nobody is measured."""
    used = sum(min(load, 1.0) * speeds[peer] for peer, load in loads.items())
    return used / _mean(speeds.values(), 1.0) if loads else None


def _speeds(stage: Stage, speeds: Mapping[str, float]) -> dict[str, float]:
    """Of every peer; those that are not known are like the mean of those that are."""
    mean = _mean([speeds[peer] for peer in stage if peer in speeds] if speeds else (), 1.0)
    return {peer: speeds.get(peer, mean) for peer in stage} if speeds else dict.fromkeys(stage, mean)


def _measured(stage: Stage) -> dict[str, float]:
    return {peer: load for peer, load in stage.items() if load is not None}


def _mean(values: Iterable[float], otherwise: float) -> float:
    values = list(values)
    return sum(values) / len(values) if values else otherwise


def _by_load(states: Sequence[_State]) -> list[int]:
    """Stages, the least loaded first."""
    return sorted(range(len(states)), key=lambda at: (states[at].load, states[at].queue, -len(states[at].speeds), -at))


def _move(stages: Sequence[Stage], states: Sequence[_State], resting: Collection[str]) -> Move | None:
    *sources, target = _by_load(states)
    for source in sources:
        state, load = states[source], states[target].load
        if not state.can_spare(min(state.speeds.values(), default=0.0), load):
            continue  # not even the slowest
        loads = _measured(stages[source])
        for peer in sorted(loads, key=lambda peer: (loads[peer], peer)):
            if peer not in resting and state.can_spare(state.speeds[peer], load):
                return Move(peer, source, target)
    return None


def _carry_out(move: Move, stages: Sequence[dict[str, float | None]], source: _State) -> None:
    """As if the peer were on its way: those that stay share its work."""
    del stages[move.source][move.peer]
    more = source.capacity / (source.capacity - source.speeds[move.peer])
    stages[move.source].update({peer: load * more for peer, load in _measured(stages[move.source]).items()})
    stages[move.target][move.peer] = None
