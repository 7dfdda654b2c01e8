"""Alpha, beta and gamma of collectives, from times that their closed forms made."""

import asyncio

import numpy as np
import pytest

from collectives import Links, ProblemSize
from pipelined.aio.clock import VirtualClock
from pipelined.measurement.collective_fits import (
    TABLES,
    TimedCall,
    Timing,
    addition,
    fit_apart,
    fit_pooled,
    time_collectives,
)
from transports import open_local

SIZES = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22)
NEAR, FAR = (2e-5, 2e-10, 5e-11), (1e-3, 4e-9, 5e-11)
TRUTHS = {(0, 1, 2, 3): NEAR, (0, 1): NEAR, (0, 4, 8): FAR}
"""Alpha, beta and gamma by group: two groups on a node, and one over three nodes."""


def noisy(seconds, noise, random):
    return tuple(seconds * (1 + noise * random.standard_normal(15)))


def made(noise, gamma=True):
    """Times of every collective and algorithm with closed forms over these groups, and times of additions."""
    random, timings = np.random.default_rng(1), []
    for collective, table in TABLES.items():
        for algorithm in table.with_closed_forms:
            for ranks, (alpha, beta, adding) in TRUTHS.items():
                for nbytes in SIZES:
                    problem, links = ProblemSize.on_one_node(len(ranks), nbytes), Links(alpha, beta, adding * gamma)
                    seconds = table.forms(algorithm).seconds(problem, links)
                    timings.append(
                        Timing(TimedCall(collective, algorithm, ranks), nbytes, noisy(seconds, noise, random))
                    )
    return timings, [addition(nbytes, noisy(nbytes * NEAR[2], noise, random)) for nbytes in SIZES]


def test_times_of_the_closed_forms_give_their_numbers_back():
    timings, additions = made(0.0)
    fits = fit_apart(timings, additions)
    assert len(fits) == 3 * sum(len(table.with_closed_forms) for table in TABLES.values())
    for timed, found in fits.items():
        assert found.values == pytest.approx(TRUTHS[timed.ranks], rel=1e-6), timed


def test_with_noise_of_5_percent_the_intervals_hold_the_truth():
    fits = fit_apart(*made(0.05))
    for timed, found in fits.items():
        for value, margin, truth in zip(found.values, found.margins, TRUTHS[timed.ranks], strict=True):
            assert abs(value - truth) <= margin, timed
    assert all(
        margin < 0.2 * value
        for found in fits.values()
        for value, margin in zip(found.values, found.margins, strict=True)
    )


def test_the_pooled_fit_is_exact_where_all_links_are_alike_and_adding_is_free():
    timings = [timing for timing in made(0.0, gamma=False)[0] if timing.timed.ranks != (0, 4, 8)]
    assert fit_pooled(timings).values == pytest.approx(NEAR[:2], rel=1e-6)


def test_the_pooled_fit_finds_the_numbers_of_no_group_where_they_differ():
    """Long messages between nodes have the largest errors, and plain least squares follow them."""
    timings, additions = made(0.0)
    pooled, apart = fit_pooled(timings), fit_apart(timings, additions)
    assert NEAR[1] < pooled.values[1] < FAR[1]
    assert all(found.values[1] != pytest.approx(pooled.values[1], rel=0.01) for found in apart.values())


@pytest.mark.virtual
async def test_calls_over_slow_links_give_the_delays_and_rates_of_the_links_near_and_far():
    """On the virtual clock, where adding takes no time."""
    every = [
        TimedCall(collective, algorithm, ranks)
        for collective, table in TABLES.items()
        for algorithm in {"ring", "pairwise"} & set(table.with_closed_forms)
        for ranks in ((0, 1, 2), (0, 3))
    ]
    ends = open_local("local://?delay=1ms&rate=1gbit&node=3&far-delay=5ms&far-rate=200mbit", 6)
    sizes, clock = (1 << 14, 1 << 17, 1 << 20), VirtualClock()
    timings, *others = await asyncio.gather(*(time_collectives(end, clock, every, sizes, 2) for end in ends))
    assert not any(others)
    fits = fit_apart(timings, [addition(1 << 20, (0.0,))])
    for timed, found in fits.items():
        alpha, beta = (1e-3, 8e-9) if timed.ranks == (0, 1, 2) else (5e-3, 4e-8)
        assert found.values[:2] == (pytest.approx(alpha, rel=0.005), pytest.approx(beta, rel=0.005)), timed
    assert len(fits) == 8
    await asyncio.gather(*(end.close() for end in ends))
