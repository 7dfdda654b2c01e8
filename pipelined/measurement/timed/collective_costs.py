"""Alpha, beta and gamma of each collective by messages, among the ranks of a node and among one rank of every node.

Each collective of a group has a fit of its own, by weighted least squares with 95 % intervals. Its factors of beta and
gamma both grow with the bytes, so gamma cannot be told from beta there: adding is timed alone and taken off. All
collectives of a group together give all three. Beside them stands what AutoDDL fits: one alpha and one beta for all,
unweighted, with adding in beta (section 3.2; its factors are those of its Table 2).

Each call begins at a barrier, which ranks leave at different times. What a rank waits in the call for a later one, that
one saves: in the mean of the ranks both vanish.
"""

import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import collectives
from collectives import Group, Links, ProblemSize
from collectives.algorithms import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER
from collectives.algorithms.base import ClosedForms
from collectives.objects import gather_objects
from pipelined.aio.clock import Clock
from pipelined.measurement.fit import Fit, Sample, fit
from pipelined.measurement.timed.channels import SUMS_CHANNEL
from pipelined.measurement.timed.messages_and_sums import time_adding
from transports import Transport

SIZES = (1 << 10, 1 << 15, 1 << 18, 1 << 20)
REPEATS = 5
"""Bytes of the timed calls, and how often each is run."""
TimedCall = Callable[[Group, np.ndarray], Awaitable[object]]
CollectiveSamples = Mapping[str, Sequence[Sample]]
"""By collective, with the factors of alpha, beta and gamma."""


def _all_to_all(group: Group, array: np.ndarray) -> Awaitable[object]:
    """An all-to-all of the array, cut evenly."""
    outgoing = np.array_split(array, group.size)
    return collectives.all_to_all(group, outgoing, [np.empty_like(outgoing[group.rank]) for _ in outgoing], "pairwise")


CALLS: Mapping[str, tuple[ClosedForms, TimedCall]] = {
    "all_gather": (ALL_GATHER.forms("ring"), lambda g, array: collectives.all_gather(g, array, algorithm="ring")),
    "reduce_scatter": (
        REDUCE_SCATTER.forms("ring"),
        lambda g, array: collectives.reduce_scatter(g, array, algorithm="ring"),
    ),
    "all_reduce": (ALL_REDUCE.forms("ring"), lambda g, array: collectives.all_reduce(g, array, "sum", "ring")),
    "all_to_all": (ALL_TO_ALL.forms("pairwise"), _all_to_all),
}
"""The calls that the moves of tensors make, with their closed forms."""


@dataclass(frozen=True)
class CollectiveCosts:
    """What the messages of a group cost.

    Args:
        ranks: of the group.
        each: alpha and beta of each collective, adding taken off.
        joint: alpha, beta and gamma of all collectives together, weighted.
        pooled: alpha and beta of all together, unweighted.
        adding: seconds to add a byte, timed alone.
    """

    ranks: tuple[int, ...]
    each: Mapping[str, Fit]
    joint: Fit
    pooled: Fit
    adding: float

    @property
    def pooled_links(self) -> Links:
        """The paper's one alpha and one beta."""
        alpha, beta = self.pooled.values
        return Links(alpha, beta, 0.0)

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON: [value, margin] of each."""
        fits = {name: found.to_dict("alpha", "beta") for name, found in self.each.items()}
        joint = self.joint.to_dict("alpha", "beta", "gamma")
        pooled = self.pooled.to_dict("alpha", "beta")
        return {"ranks": list(self.ranks), "each": fits, "joint": joint, "pooled": pooled, "adding": self.adding}


def groups(nodes: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The ranks of the first node that has several, and the first rank of each node, where there are several nodes.

    Args:
        nodes: of each rank the lowest rank on its node.
    """
    found = dict[str, tuple[int, ...]]()
    leaders = tuple(dict.fromkeys(nodes))
    if shared := [node for node in leaders if nodes.count(node) > 1]:
        found["on a node"] = tuple(rank for rank, node in enumerate(nodes) if node == shared[0])
    if len(leaders) > 1:
        found["between nodes"] = leaders
    return found


async def measure_collectives(transport: Transport, clock: Clock, ranks: tuple[int, ...]) -> CollectiveCosts | None:
    """Time the collectives of a group; all ranks of the transport call this together.

    Returns: the fits on rank 0, None on the others.
    Cost: 20 calls of each collective, of up to a MiB.
    """
    group = Group(transport, ranks, SUMS_CHANNEL) if transport.rank in ranks else None
    samples = dict[str, list[Sample]]()
    for name, (forms, call) in CALLS.items():
        mine = [[await _time(group, clock, call, size) for _ in range(REPEATS)] for size in SIZES] if group else []
        everyone = await gather_objects(transport, f"{name} among {ranks}", mine)
        times_by_size = zip(*filter(None, everyone), strict=True)  # nothing on other ranks than 0
        samples[name] = [_sample(forms, len(ranks), *timed) for timed in zip(SIZES, times_by_size, strict=False)]
    return fitted(ranks, samples, time_adding(clock, REPEATS)) if transport.rank == 0 else None


def _sample(forms: ClosedForms, ranks: int, nbytes: int, times_of_ranks: Sequence[Sequence[float]]) -> Sample:
    """The mean over the ranks of each repetition."""
    means = [statistics.mean(repetition) for repetition in zip(*times_of_ranks, strict=True)]
    return Sample(forms.factors(ProblemSize.on_one_node(ranks, nbytes)), tuple(means))


def fitted(ranks: tuple[int, ...], samples: CollectiveSamples, adding: float) -> CollectiveCosts:
    """The fits of timed collectives."""
    every = [sample for of_one in samples.values() for sample in of_one]
    fits = {name: fit([_without_additions(sample, adding) for sample in of_one]) for name, of_one in samples.items()}
    pooled = fit([Sample(sample.regressors[:2], sample.seconds) for sample in every], weighted=False)
    return CollectiveCosts(ranks, fits, fit(every), pooled, adding)


def _without_additions(sample: Sample, adding: float) -> Sample:
    """The sample of alpha and beta alone; at least a tenth of each time is left."""
    *regressors, bytes_added = sample.regressors
    rest = (max(0.1 * seconds, seconds - adding * bytes_added) for seconds in sample.seconds)
    return Sample(tuple(regressors), tuple(rest))


async def _time(group: Group, clock: Clock, call: TimedCall, nbytes: int) -> float:
    array = np.ones(nbytes // 4, np.float32)
    await collectives.barrier(group)
    start = clock.now()
    await call(group, array)
    return clock.now() - start
