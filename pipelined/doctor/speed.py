"""Timing of links for the doctor: alpha and beta of a message between two ranks, and the bandwidth of all-reduces.

All ranks call these together, and rank 0 gets the result. The timed code is that of training: coroutines, messages by
address, and sums with the algorithm that `auto` chooses. Nothing else runs at the same time, so training is never
faster.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from collectives import Group, all_reduce, barrier
from collectives.all_reduce import known
from pipelined.actors.actor import Actor
from pipelined.actors.agree import gather
from pipelined.aio.clock import Clock
from pipelined.aio.nursery import Nursery
from pipelined.measurement.fit import Sample, fit
from transports import Transport

HOPS = (1 << 10, 1 << 16, 1 << 20, 1 << 22)
SUMS = (1 << 10, 1 << 16, 1 << 20, 1 << 24)
"""Sizes of the timed messages and sums, in bytes."""
ROUNDS = 9
"""Repetitions of each, after one that is not counted."""
CHANNEL = 1
"""The bare-buffer channel of the sums."""


@dataclass(frozen=True)
class Hop:
    """A message between two ranks: alpha + bytes * beta seconds.

    Args:
        ranks: the two ranks.
        margin_alpha, margin_beta: half the width of their 95 % intervals.
    """

    ranks: tuple[int, int]
    alpha: float
    beta: float
    margin_alpha: float
    margin_beta: float


@dataclass(frozen=True)
class SumSpeed:
    """An all-reduce over all ranks.

    Args:
        algorithm: the algorithm that `auto` chose.
        seconds: the median over rounds of the slowest rank's time.
        algbw: bytes of the array per second.
        busbw: bytes per second on each rank's link: algbw times 2 (n - 1) / n.
    """

    nbytes: int
    algorithm: str
    seconds: float
    algbw: float
    busbw: float


@dataclass(frozen=True)
class Speed:
    """The measured links and sums.

    Args:
        near: a message between two ranks of one node; None if there is no such pair.
        far: a message between two nodes; None if there is no such pair.
        sums: all-reduces of increasing size.
    """

    near: Hop | None
    far: Hop | None
    sums: tuple[SumSpeed, ...]

    def plain(self) -> dict[str, Any]:
        """The same as JSON."""
        return asdict(self)


async def measure(actor: Actor, clock: Clock, tell: Callable[[str], None]) -> Speed | None:
    """Time messages and all-reduces.

    Returns: the result on rank 0, None on the others.
    Cost: a few seconds.
    """
    transport, hops = actor.transport, []
    for pair in pairs(transport.nodes):
        if pair is None:
            hops.append(None)
            continue
        tell("timing messages between ranks {} and {}".format(*pair))
        hops.append(await _hop(transport, clock, pair))
    tell(f"timing all-reduces over {transport.world_size} ranks")
    group = Group(transport, tuple(range(transport.world_size)), CHANNEL)
    sums = [await _sum(group, clock, nbytes) for nbytes in SUMS]
    return Speed(*hops, tuple(sums)) if actor.rank == 0 else None


def pairs(nodes: tuple[int, ...]) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """The lowest pair of ranks on one node, and the lowest pair on different nodes; None if there is no such pair."""
    ranks = range(len(nodes))
    every = [(one, other) for one in ranks for other in ranks[one + 1 :]]
    near = next((pair for pair in every if nodes[pair[0]] == nodes[pair[1]]), None)
    return near, next((pair for pair in every if nodes[pair[0]] != nodes[pair[1]]), None)


async def _hop(transport: Transport, clock: Clock, pair: tuple[int, int]) -> Hop | None:
    """Time half a round trip for every size; rank 0 fits alpha and beta to these times."""
    mine = []
    for nbytes in HOPS:
        body = np.full(nbytes, 7, np.uint8)
        mine.append([await _round_trip(transport, clock, pair, body) / 2 for _ in range(ROUNDS + 1)][1:])
    everyone = await gather(transport, f"doctor hops {pair}", mine if transport.rank == pair[0] else None)
    if not everyone:
        return None
    samples = [Sample((1.0, float(n)), tuple(taken)) for n, taken in zip(HOPS, everyone[pair[0]], strict=True)]
    found = fit(samples)
    return Hop(pair, *found.values, *found.margins)


async def _round_trip(transport: Transport, clock: Clock, pair: tuple[int, int], body: np.ndarray) -> float:
    first, second = pair
    start = clock.now()
    if transport.rank == first:
        async with Nursery() as tasks:
            tasks.create_task(transport.send(second, ("doctor", "there"), body))
            tasks.create_task(transport.receive(second, ("doctor", "back")))
    elif transport.rank == second:
        await transport.receive(first, ("doctor", "there"))
        await transport.send(first, ("doctor", "back"), body)
    return clock.now() - start


async def _sum(group: Group, clock: Clock, nbytes: int) -> SumSpeed:
    """Time an all-reduce; the time of a round is that of its slowest rank."""
    mine = []
    for _ in range(ROUNDS + 1):
        array = np.full(nbytes // 4, 1.0, np.float32)
        await barrier(group)
        start = clock.now()
        await all_reduce(group, array)
        mine.append(clock.now() - start)
    async with group.calling("what auto chooses"):
        chosen = await known("auto").chosen_by(group, nbytes)
    everyone = await gather(group.transport, f"doctor sums {nbytes}", mine[1:])
    seconds = statistics.median(map(max, zip(*everyone, strict=True))) if everyone else math.inf
    algbw = nbytes / seconds
    return SumSpeed(nbytes, chosen, seconds, algbw, algbw * 2 * (group.size - 1) / group.size)
