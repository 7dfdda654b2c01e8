"""Timing of links for the doctor: alpha and beta of a message between two ranks, and the bandwidth of all-reduces.

All ranks call these functions together, and rank 0 gets the result. The timed code is that of training: coroutines,
messages by address, and sums with the algorithm that `auto` chooses. Nothing else runs at the same time, so training is
never faster.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from collectives import Group, Signature
from collectives.algorithms import ALL_REDUCE
from collectives.objects import gather_objects
from pipelined.actors.actor import Actor
from pipelined.aio.clock import Clock
from pipelined.measurement.fit import Sample, fit
from pipelined.measurement.timed.channels import SUMS_CHANNEL
from pipelined.measurement.timed.messages_and_sums import time_hops, time_sum

MESSAGE_SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 22)
SUM_SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 24)
"""Bytes of the timed messages, and of the arrays of the timed sums."""
ROUNDS = 9
"""Repetitions of each message and sum, after a first that is not counted."""


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

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON."""
        return asdict(self)


async def measure(actor: Actor, clock: Clock, progress: Callable[[str], None]) -> Speed | None:
    """Time messages and all-reduces.

    Returns: the result on rank 0, None on the others.
    Cost: a few seconds.
    """
    transport = actor.transport
    hops = list[Hop | None]()
    for pair in pairs(transport.nodes):
        if pair is None:
            hops.append(None)
            continue
        progress("timing messages between ranks {} and {}".format(*pair))
        hops.append(await _measure_hop(actor, clock, pair))
    progress(f"timing all-reduces over {transport.world_size} ranks")
    group = Group(transport, tuple(range(transport.world_size)), SUMS_CHANNEL)
    sums = [await _measure_sum(group, clock, nbytes) for nbytes in SUM_SIZES]
    near, far = hops
    return Speed(near, far, tuple(sums)) if actor.rank == 0 else None


def pairs(nodes: tuple[int, ...]) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """The lowest pair of ranks on one node, and the lowest pair on different nodes; None if there is no such pair."""
    ranks = range(len(nodes))
    all_pairs = [(low, high) for low in ranks for high in ranks[low + 1 :]]
    near = next(((low, high) for low, high in all_pairs if nodes[low] == nodes[high]), None)
    return near, next(((low, high) for low, high in all_pairs if nodes[low] != nodes[high]), None)


async def _measure_hop(actor: Actor, clock: Clock, pair: tuple[int, int]) -> Hop | None:
    """Time hops of every size; rank 0 fits alpha and beta to them."""
    samples = await time_hops(actor, clock, pair, MESSAGE_SIZES, ROUNDS + 1, compute=_compute_nothing, idle_s=0.0)
    if not samples:
        return None
    alpha_beta = fit([Sample(sample.regressors, sample.seconds[1:]) for sample in samples])
    return Hop(pair, *alpha_beta.values, *alpha_beta.margins)


async def _compute_nothing(seconds: float) -> None:
    """Compute nothing: here a rank only waits for the reply."""


async def _measure_sum(group: Group, clock: Clock, nbytes: int) -> SumSpeed:
    """Time an all-reduce; the time of a round is that of its slowest rank."""
    times = []
    for _ in range(ROUNDS + 1):
        array = np.full(nbytes // 4, 1.0, np.float32)
        times.append(await time_sum(group, clock, array, "auto"))
    async with group.call(Signature("algorithm that auto chooses")):
        algorithm = await ALL_REDUCE.choose(group, nbytes, group.measured)
    times_by_rank = await gather_objects(group.transport, f"doctor sums {nbytes}", times[1:])
    seconds = statistics.median(map(max, zip(*times_by_rank, strict=True))) if times_by_rank else math.inf
    algbw = nbytes / seconds
    return SumSpeed(nbytes, algorithm, seconds, algbw, algbw * 2 * (group.size - 1) / group.size)
