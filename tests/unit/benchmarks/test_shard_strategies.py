"""Strategies of a GPT-2 block over slow links take what was predicted (AutoDDL, Figure 4, without its noise)."""

from itertools import combinations

import pytest

from benchmarks import shard_strategies
from benchmarks.shard_strategies import ONE_NODE, TWO_NODES, Run, regret, run, run_all, strategies, tau
from pipelined.aio.clock import RealClock

SAMPLES = [pytest.param(3, id="3"), pytest.param(40, id="40", marks=pytest.mark.full)]


@pytest.mark.parametrize("number", SAMPLES)
def test_on_one_node_they_take_what_was_predicted_in_the_predicted_order(number):
    runs = [run(factors, ONE_NODE) for factors in strategies(number)]
    for each in runs:
        assert abs(each.error) < 0.005, each
    for one, other in combinations(runs, 2):
        fast, slow = sorted([one, other], key=lambda each: each.predicted)
        if slow.predicted > 1.01 * fast.predicted:
            assert fast.taken < slow.taken, (fast, slow)


@pytest.mark.parametrize("number", SAMPLES)
def test_on_two_nodes_none_takes_longer_than_predicted_and_little_less(number):
    runs = [run(factors, TWO_NODES) for factors in strategies(number)]
    for each in runs:
        assert 0.995 * each.predicted <= each.taken <= each.predicted, each
    assert tau(runs) >= 0.9


def test_tau_is_the_share_of_pairs_in_order_less_that_of_pairs_out_of_order():
    runs = [Run("", 1.0, 1.1), Run("", 2.0, 2.5), Run("", 3.0, 2.4)]
    assert tau(runs) == pytest.approx((2 - 1) / 3)
    assert regret(runs) == 0.0
    assert regret([Run("", 1.0, 3.0), Run("", 2.0, 2.0)]) == pytest.approx(0.5)


def test_strategies_differ():
    drawn = [tuple(each.items()) for each in strategies(40)]
    assert len(set(drawn)) == 40


def test_in_real_time_passes_over_all_strategies_follow_one_on_the_virtual_clock(monkeypatch):
    every, calls = strategies(2), []

    async def taken(factors, network, clock):
        calls.append((every.index(factors), isinstance(clock, RealClock)))
        return float(len(calls))

    monkeypatch.setattr(shard_strategies, "taken", taken)
    runs = run_all(every, ONE_NODE, repeats=3)
    assert calls == [(0, False), (1, False), *[(0, True), (1, True)] * 3]
    assert [each.taken for each in runs] == [5.0, 6.0], "the median of the passes"
