"""Alpha, beta and gamma of collectives: those that were set, of each collective, near and far; and the paper's fit."""

import asyncio

import pytest

from collectives import Links, ProblemSize
from pipelined.aio.clock import VirtualClock
from pipelined.measurement.fit import Sample
from pipelined.measurement.timed.collective_costs import CALLS, SIZES, fit_collectives, groups, measure_collectives
from transports import open_local

ALPHA, BETA, GAMMA = 2e-4, 3e-9, 1e-9


def test_a_group_is_the_ranks_of_a_node_or_one_rank_of_each():
    assert groups((0, 0, 0)) == {"on a node": (0, 1, 2)}
    assert groups((0, 1, 2)) == {"between nodes": (0, 1, 2)}
    assert groups((0, 1, 1, 0)) == {"on a node": (0, 3), "between nodes": (0, 1)}
    assert groups((0, 1, 1)) == {"on a node": (1, 2), "between nodes": (0, 1)}
    assert groups((0,)) == {}


def exact(ranks, links):
    """Samples that take what the closed forms say."""
    samples = {}
    for name, (forms, _) in CALLS.items():
        sizes = [ProblemSize.on_one_node(ranks, size) for size in SIZES]
        samples[name] = [Sample(forms.factors(size), (forms.seconds(size, links),) * 3) for size in sizes]
    return samples


def test_each_collective_gives_alpha_and_beta_and_all_together_gamma():
    costs = fit_collectives((0, 1, 2, 3), exact(4, Links(ALPHA, BETA, GAMMA)), GAMMA)
    for name, collective_fit in costs.fits.items():
        assert collective_fit.values == pytest.approx((ALPHA, BETA)), name
    assert costs.joint_fit.values == pytest.approx((ALPHA, BETA, GAMMA))
    for margin, value in zip(costs.joint_fit.margins, costs.joint_fit.values, strict=True):
        assert 0 < margin < 0.2 * value, "times are trusted to 1 %"


def test_the_papers_fit_has_adding_in_beta():
    costs = fit_collectives((0, 1, 2, 3), exact(4, Links(ALPHA, BETA, GAMMA)), GAMMA)
    alpha, beta = costs.pooled_fit.values
    assert alpha == pytest.approx(ALPHA, rel=0.05) and BETA < beta < BETA + GAMMA
    assert costs.pooled_links == Links(alpha, beta, 0.0)


@pytest.mark.virtual
@pytest.mark.parametrize(("name", "alpha", "rate"), [("on a node", 1e-3, 1e9), ("between nodes", 5e-3, 200e6)])
async def test_near_and_far_groups_have_the_delay_and_the_rate_of_their_links(name, alpha, rate):
    url = "local://?delay=1ms&rate=1gbit&node=4&far-delay=5ms&far-rate=200mbit"
    ends, clock = open_local(url, 12), VirtualClock()
    ranks = groups(ends[0].nodes)[name]
    costs, *others = await asyncio.gather(*(measure_collectives(end, clock, ranks) for end in ends))
    assert others == [None] * 11 and costs.ranks == ranks
    assert list(costs.fits) == list(CALLS)
    for collective_fit in (*costs.fits.values(), costs.pooled_fit, costs.joint_fit):
        assert collective_fit.values[:2] == (pytest.approx(alpha, rel=0.005), pytest.approx(8 / rate, rel=0.005))
    assert costs.to_dict()["each"]["all_to_all"]["alpha"][0] == pytest.approx(alpha, rel=0.005)
    await asyncio.gather(*(end.close() for end in ends))
