"""Timing of links: the cost of a message and of gradient sums, between ranks of one node and of different nodes.

The conditions are those of training:
- The receiver is idle before a message arrives, as in a pipeline's gap.
- The sender computes right after it has sent, as its next instruction would.
- The arrays of messages and sums are written before they are used, because untouched memory reads too fast. The arrays
  to sum are all written before the first sum of their size: most gradients of a bucket, too, are written long before.

Clocks of two ranks are not compared: a hop is half of a round trip, less the wait at the far end.
"""

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from collectives import Group, Links, ProblemSize, all_reduce, barrier
from collectives.algorithms import ALL_REDUCE
from collectives.objects import gather_objects
from pipelined.actors.actor import Actor
from pipelined.aio.clock import Clock
from pipelined.measurement.effort import THOROUGH, Effort
from pipelined.measurement.fit import Fit, Sample, fit
from pipelined.measurement.timed.channels import SUMS_CHANNEL

IDLE_S = 0.012
"""Seconds that both ends are idle before a message is sent."""
BUSY_S = 0.008
"""Seconds that the sender then computes; shorter than `IDLE_S`, so the reply is sent later."""

Compute = Callable[[float], Awaitable[object]]


@dataclass(frozen=True)
class LinkFit:
    """The measured costs of one kind of link.

    Args:
        links: alpha, beta and gamma.
        fit: the fit of alpha and beta, with intervals.
    """

    links: Links
    fit: Fit


async def measure_hops(
    actor: Actor,
    clock: Clock,
    pairs: Sequence[tuple[int, int]],
    compute: Compute,
    *,
    progress: Callable[[str], None],
    effort: Effort = THOROUGH,
) -> LinkFit | None:
    """Alpha and beta of a message between these ranks; all ranks call this together, and rank 0 gets the result.

    Args:
        compute: keeps this rank's device busy for a number of seconds.
    """
    samples = []
    for first, second in pairs:
        progress(f"timing messages between ranks {first} and {second}")
        samples += await time_hops(actor, clock, (first, second), effort.message_sizes, effort.repeats, compute=compute)
    return as_links(fit(samples), 0.0) if samples else None


async def time_hops(
    actor: Actor,
    clock: Clock,
    pair: tuple[int, int],
    sizes: Sequence[int],
    repeats: int,
    *,
    compute: Compute,
    idle_s: float = IDLE_S,
) -> list[Sample]:
    """Seconds of messages of some sizes between two ranks, as samples of alpha + size * beta.

    All ranks call this together; rank 0 gets the samples, the others an empty list. Arguments as for `hop`.
    """
    times = [
        [await hop(actor, clock, pair, size=size, number=n, compute=compute, idle_s=idle_s) for n in range(repeats)]
        for size in sizes
    ]
    times_by_rank = await gather_objects(actor.transport, f"hops {pair}", times)
    rows = zip(sizes, times_by_rank[pair[0]], strict=True) if times_by_rank else ()
    return [Sample((1.0, float(size)), tuple(seconds)) for size, seconds in rows]


async def hop(
    actor: Actor,
    clock: Clock,
    pair: tuple[int, int],
    *,
    size: int,
    number: int,
    compute: Compute,
    idle_s: float = IDLE_S,
) -> float:
    """Send `size` bytes there and back; the seconds of one way on the first of the two ranks, 0 elsewhere.

    Args:
        number: a number that no earlier hop of this size between the two ranks had; it makes the address unique.
        compute: what each end computes right after it has sent, for `BUSY_S` seconds; see `measure_hops`.
        idle_s: seconds that each end is idle before it sends.
    """
    first, second = pair
    body = np.ones(size, np.uint8)
    key = (first, second, size, number)
    if actor.rank == first:
        reply = actor.start(actor.receive(second, ("back", *key)))
        await clock.sleep(idle_s)
        start = clock.now()
        sending = actor.tell(second, ("there", *key), body)
        await compute(BUSY_S)
        message, _ = await asyncio.gather(reply, sending)
        return (clock.now() - start - message.note) / 2
    if actor.rank == second:
        await actor.receive(first, ("there", *key))
        arrival = clock.now()
        await clock.sleep(idle_s)
        sending = actor.tell(first, ("back", *key), body, note=clock.now() - arrival)
        await compute(BUSY_S)
        await sending
    return 0.0


async def measure_sums(
    actor: Actor,
    clock: Clock,
    ranks: tuple[int, ...],
    algorithm: str,
    *,
    progress: Callable[[str], None],
    effort: Effort = THOROUGH,
) -> LinkFit | None:
    """Alpha, beta and gamma of sums over these ranks; all ranks call this together, and rank 0 gets the result.

    Gamma is measured as plain addition; alpha and beta are fitted to the closed form of the algorithm.
    """
    progress(f"timing sums over {len(ranks)} ranks")
    times = list[list[float]]()
    if actor.rank in ranks:
        group = Group(actor.transport, ranks, SUMS_CHANNEL)
        for size in effort.sum_sizes:
            arrays = [np.ones(size // 4, np.float32) for _ in range(effort.repeats)]
            times.append([await time_sum(group, clock, array, algorithm) for array in arrays])
    times_by_rank = await gather_objects(actor.transport, f"sums {ranks}", times)
    if actor.rank:
        return None
    gamma = time_adding(clock, effort.repeats)
    samples = []
    for size, times_of_ranks in zip(effort.sum_sizes, zip(*filter(None, times_by_rank), strict=True), strict=True):
        slowest = [max(repetition) for repetition in zip(*times_of_ranks, strict=True)]
        alpha, beta, bytes_added = _unit_costs(algorithm, len(ranks), size)
        samples.append(Sample((alpha, beta), tuple(without_adding(slowest, gamma * bytes_added))))
    return as_links(fit(samples), gamma)


async def time_sum(group: Group, clock: Clock, array: np.ndarray, algorithm: str) -> float:
    """Seconds of an all-reduce on this rank, from a barrier on."""
    await barrier(group)
    start = clock.now()
    await all_reduce(group, array, "sum", algorithm)
    return clock.now() - start


def without_adding(times: Sequence[float], adding_s: float) -> list[float]:
    """The seconds of calls without those of adding in each; at least a tenth of each call's seconds is left."""
    return [max(0.1 * seconds, seconds - adding_s) for seconds in times]


def _unit_costs(algorithm: str, ranks: int, nbytes: int) -> tuple[float, float, float]:
    """The factors of alpha, beta and gamma in a sum's closed form; `auto` chooses as a group does in training."""
    modelled = "auto" if algorithm == "native" else algorithm
    problem = ProblemSize.on_one_node(ranks, nbytes)
    return ALL_REDUCE.closed_forms_for(modelled, problem, Links()).factors(problem)


def time_adding(clock: Clock, repeats: int) -> float:
    """Seconds per byte of adding one array to another."""
    total = np.ones(1 << 19, np.float32)
    array = np.ones(1 << 19, np.float32)
    times = []
    for _ in range(repeats):
        start = clock.now()
        np.add(total, array, out=total)
        times.append(clock.now() - start)
    return statistics.median(times) / array.nbytes


def as_links(alpha_beta: Fit, gamma: float) -> LinkFit:
    """Links by a fit of alpha and beta, with the gamma that was measured apart."""
    alpha, beta = alpha_beta.values
    return LinkFit(Links(alpha, beta, gamma), alpha_beta)
