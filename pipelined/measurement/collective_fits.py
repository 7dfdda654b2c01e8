"""Alpha, beta and gamma of each collective and group, from timed calls; and of all calls pooled, as the paper has it.

The links of a group must be alike: its ranks are on one node, or each is on a node of its own. In the times of one
algorithm the factors of beta and gamma are proportional; so additions are timed, too, as samples of gamma alone.
"""

import statistics
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import collectives
from collectives import Group, Links, ProblemSize
from collectives.algorithms import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER
from collectives.algorithms.registry import AlgorithmTable
from pipelined.actors.agree import gather
from pipelined.aio.clock import Clock
from pipelined.measurement.fit import Fit, Sample, fit
from transports import Transport

CHANNEL = 1
"""The bare-buffer channel of the timed calls."""

TABLES: dict[str, AlgorithmTable[Any]] = {
    "all_reduce": ALL_REDUCE,
    "all_gather": ALL_GATHER,
    "reduce_scatter": REDUCE_SCATTER,
    "all_to_all": ALL_TO_ALL,
}


class TimedCall(NamedTuple):
    """What was timed: a collective over these ranks by one algorithm; the names are those of its table."""

    collective: str
    algorithm: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Timing:
    """One call, repeated.

    Args:
        nbytes: of the array.
        seconds: of each repetition, the mean of its ranks.
    """

    timed: TimedCall
    nbytes: int
    seconds: tuple[float, ...]

    @property
    def sample(self) -> Sample:
        """The factors of alpha, beta and gamma in the algorithm's closed form; `auto` is the fastest."""
        problem = ProblemSize.on_one_node(len(self.timed.ranks), self.nbytes)
        forms = TABLES[self.timed.collective].closed_forms_for(self.timed.algorithm, problem, Links())
        return Sample(forms.factors(problem), self.seconds)


async def time_collectives(
    transport: Transport, clock: Clock, every: Sequence[TimedCall], sizes: Sequence[int], repeats: int
) -> list[Timing]:
    """Time calls one after another, each from a barrier on; all ranks call this together, and rank 0 gets the timings.

    Ranks leave a barrier at different times. What a rank waits in the call for a later one, that one saves: in the mean
    of the ranks both vanish, and on the slowest rank a call of one step may take twice as long.

    Args:
        sizes: bytes of the arrays.
    """
    timings = []
    for timed in every:
        for nbytes in sizes:
            mine = list[float]()
            if transport.rank in timed.ranks:
                group = Group(transport, timed.ranks, CHANNEL)
                mine = [await _time_call(group, clock, timed, nbytes) for _ in range(repeats)]
            everyone = await gather(transport, f"{timed} of {nbytes} bytes", mine)
            if rows := [of_rank for of_rank in everyone if of_rank]:
                timings.append(Timing(timed, nbytes, tuple(map(statistics.mean, zip(*rows, strict=True)))))
    return timings


async def _time_call(group: Group, clock: Clock, timed: TimedCall, nbytes: int) -> float:
    array = np.ones(nbytes // 4, np.float32)
    await collectives.barrier(group)
    start = clock.now()
    await CALLS[timed.collective](group, array, timed.algorithm)
    return clock.now() - start


def _scattered_to_all(group: Group, array: np.ndarray, algorithm: str) -> Awaitable[object]:
    """An all-to-all of the array, cut evenly."""
    outgoing = np.array_split(array, group.size)
    incoming = [np.empty_like(outgoing[group.rank]) for _ in outgoing]
    return collectives.all_to_all(group, outgoing, incoming, algorithm)


CALLS: dict[str, Callable[[Group, np.ndarray, str], Awaitable[object]]] = {
    "all_reduce": lambda group, array, algorithm: collectives.all_reduce(group, array, "sum", algorithm),
    "all_gather": lambda group, array, algorithm: collectives.all_gather(group, array, algorithm=algorithm),
    "reduce_scatter": lambda group, array, algorithm: collectives.reduce_scatter(group, array, algorithm=algorithm),
    "all_to_all": _scattered_to_all,
}


def addition(nbytes: int, seconds: Sequence[float]) -> Sample:
    """A sample of gamma alone: the seconds of adding one array of these bytes to another."""
    return Sample((0.0, 0.0, float(nbytes)), tuple(seconds))


def fit_apart(timings: Sequence[Timing], additions: Sequence[Sample]) -> dict[TimedCall, Fit]:
    """Alpha, beta and gamma of each collective, algorithm and group: weighted least squares, with intervals.

    Args:
        additions: samples by `addition`, at least one; they belong to every fit.
    """
    samples = defaultdict[TimedCall, list[Sample]](list)
    for timing in timings:
        samples[timing.timed].append(timing.sample)
    return {timed: fit([*found, *additions]) for timed, found in samples.items()}


def fit_pooled(timings: Sequence[Timing]) -> Fit:
    """One alpha and one beta for all calls: plain least squares without gamma.

    Source: AutoDDL, section 3.2; for rings and the pairwise all-to-all the factors are those of its Table 2.
    """
    return fit([Sample(timing.sample.regressors[:2], timing.seconds) for timing in timings], weighted=False)
