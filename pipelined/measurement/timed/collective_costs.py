"""Alpha, beta and gamma of each collective by messages, among the ranks of a node and among one rank of every node.

Each collective of a group has a fit of its own, by weighted least squares with 95 % intervals. Its factors of beta and
gamma both grow with the bytes, so gamma cannot be told from beta there: adding is timed alone and taken off. All
collectives of a group together give all three. The fit of AutoDDL stands beside them: one alpha and one beta for all
collectives, unweighted, with adding in beta (section 3.2; its factors are those of its Table 2).

Each call begins at a barrier, which ranks leave at different times. A rank that leaves it early waits in the call for a
later rank, which saves as much: the mean over the ranks has neither.
"""

import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
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
from pipelined.measurement.timed.messages_and_sums import time_adding, without_adding
from transports import Transport

SIZES = (1 << 10, 1 << 15, 1 << 18, 1 << 20)
"""Bytes of the timed calls."""
REPEATS = 5
"""Repetitions of each call."""
TimedCall = Callable[[Group, np.ndarray], Awaitable[object]]
CollectiveSamples = Mapping[str, Sequence[Sample]]
"""Samples by collective, with the factors of alpha, beta and gamma."""


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
    """The costs of the messages of a group.

    Args:
        ranks: the ranks of the group.
        fits: alpha and beta of each collective, without the seconds of adding.
        joint_fit: alpha, beta and gamma of all collectives together, weighted.
        pooled_fit: alpha and beta of all collectives together, unweighted.
        adding_s: seconds to add a byte, timed alone.
    """

    ranks: tuple[int, ...]
    fits: Mapping[str, Fit]
    joint_fit: Fit
    pooled_fit: Fit
    adding_s: float

    @property
    def pooled_links(self) -> Links:
        """The paper's one alpha and one beta."""
        alpha, beta = self.pooled_fit.values
        return Links(alpha, beta, 0.0)

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON, where a number is [value, margin]."""
        fits = {name: collective_fit.to_dict("alpha", "beta") for name, collective_fit in self.fits.items()}
        joint = self.joint_fit.to_dict("alpha", "beta", "gamma")
        pooled = self.pooled_fit.to_dict("alpha", "beta")
        return {"ranks": list(self.ranks), "each": fits, "joint": joint, "pooled": pooled, "adding": self.adding_s}


def groups(nodes: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The ranks of the first node with several, and the first rank of each node if there are several nodes.

    Args:
        nodes: the lowest rank on the node of each rank.
    """
    ranks_by_group = dict[str, tuple[int, ...]]()
    leaders = tuple(dict.fromkeys(nodes))
    if shared_nodes := [node for node in leaders if nodes.count(node) > 1]:
        ranks_by_group["on a node"] = tuple(rank for rank, node in enumerate(nodes) if node == shared_nodes[0])
    if len(leaders) > 1:
        ranks_by_group["between nodes"] = leaders
    return ranks_by_group


async def measure_collectives(transport: Transport, clock: Clock, ranks: tuple[int, ...]) -> CollectiveCosts | None:
    """Time the collectives of a group; all ranks of the transport call this together.

    Returns: the fits on rank 0, None on the others.
    Cost: 20 calls of each collective, of up to a MiB.
    """
    group = Group(transport, ranks, SUMS_CHANNEL) if transport.rank in ranks else None
    samples = dict[str, list[Sample]]()
    for name, (forms, call) in CALLS.items():
        times = [[await _time(group, clock, call, size) for _ in range(REPEATS)] for size in SIZES] if group else []
        times_by_rank = await gather_objects(transport, f"{name} among {ranks}", times)
        times_by_size = zip(*filter(None, times_by_rank), strict=True)  # empty on all ranks but rank 0
        samples[name] = [_sample(forms, len(ranks), *row) for row in zip(SIZES, times_by_size, strict=False)]
    return fit_collectives(ranks, samples, time_adding(clock, REPEATS)) if transport.rank == 0 else None


def _sample(forms: ClosedForms, ranks: int, nbytes: int, times_of_ranks: Sequence[Sequence[float]]) -> Sample:
    """The mean over the ranks of each repetition."""
    means = [statistics.mean(repetition) for repetition in zip(*times_of_ranks, strict=True)]
    return Sample(forms.factors(ProblemSize.on_one_node(ranks, nbytes)), tuple(means))


def fit_collectives(ranks: tuple[int, ...], samples: CollectiveSamples, adding_s: float) -> CollectiveCosts:
    """The fits of timed collectives."""
    all_samples = list(chain.from_iterable(samples.values()))
    fits = {name: fit([_without_gamma(sample, adding_s) for sample in timed]) for name, timed in samples.items()}
    pooled = fit([Sample(sample.regressors[:2], sample.seconds) for sample in all_samples], weighted=False)
    return CollectiveCosts(ranks, fits, fit(all_samples), pooled, adding_s)


def _without_gamma(sample: Sample, adding_s: float) -> Sample:
    """The sample of alpha and beta alone."""
    alpha, beta, bytes_added = sample.regressors
    return Sample((alpha, beta), tuple(without_adding(sample.seconds, adding_s * bytes_added)))


async def _time(group: Group, clock: Clock, call: TimedCall, nbytes: int) -> float:
    array = np.ones(nbytes // 4, np.float32)
    await collectives.barrier(group)
    start = clock.now()
    await call(group, array)
    return clock.now() - start
