"""Alpha and beta of a team's collectives, from timed calls, pooled as the paper of AutoDDL pools them."""

import statistics
from collections.abc import Awaitable, Callable, Mapping

import numpy as np

import collectives
from collectives import Group, Links, ProblemSize
from collectives.algorithms import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER
from collectives.algorithms.base import ClosedForms
from pipelined.actors.agree import gather
from pipelined.aio.clock import Clock
from pipelined.measurement.fit import Sample, fit
from transports import Transport

CHANNEL = 1
"""The bare-buffer channel of the timed calls."""
SIZES, REPEATS = (1 << 10, 1 << 15, 1 << 18, 1 << 20), 5
"""Bytes of the timed calls, and how often each is run."""
Call = Callable[[Group, np.ndarray], Awaitable[object]]


def _all_to_all(group: Group, array: np.ndarray) -> Awaitable[object]:
    """An all-to-all of the array, cut evenly."""
    outgoing = np.array_split(array, group.size)
    return collectives.all_to_all(group, outgoing, [np.empty_like(outgoing[group.rank]) for _ in outgoing], "pairwise")


CALLS: Mapping[str, tuple[ClosedForms, Call]] = {
    "all_gather": (ALL_GATHER.forms("ring"), lambda g, array: collectives.all_gather(g, array, algorithm="ring")),
    "reduce_scatter": (
        REDUCE_SCATTER.forms("ring"),
        lambda g, array: collectives.reduce_scatter(g, array, algorithm="ring"),
    ),
    "all_reduce": (ALL_REDUCE.forms("ring"), lambda g, array: collectives.all_reduce(g, array, "sum", "ring")),
    "all_to_all": (ALL_TO_ALL.forms("pairwise"), _all_to_all),
}
"""The calls that a team's moves make, with their closed forms."""


async def fitted_links(transport: Transport, clock: Clock) -> Links | None:
    """Alpha and beta of collectives over all ranks; on rank 0. All ranks call this together.

    Each call begins at a barrier, which ranks leave at different times. What a rank waits in the call for a later one,
    that one saves: in the mean of the ranks both vanish.

    Source: AutoDDL, section 3.2: plain least squares, without gamma; the factors are those of its Table 2.
    """
    group, samples = Group(transport, tuple(range(transport.world_size)), CHANNEL), list[Sample]()
    for name, (forms, call) in CALLS.items():
        for nbytes in SIZES:
            mine = [await _time(group, clock, call, nbytes) for _ in range(REPEATS)]
            if rows := await gather(transport, f"{name} of {nbytes} bytes", mine):
                factors = forms.factors(ProblemSize.on_one_node(group.size, nbytes))[:2]
                samples.append(Sample(factors, tuple(map(statistics.mean, zip(*rows, strict=True)))))
    return Links(*fit(samples, weighted=False).values, 0.0) if samples else None


async def _time(group: Group, clock: Clock, call: Call, nbytes: int) -> float:
    array = np.ones(nbytes // 4, np.float32)
    await collectives.barrier(group)
    start = clock.now()
    await call(group, array)
    return clock.now() - start
