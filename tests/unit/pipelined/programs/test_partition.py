"""Stages of least largest cost, every layer placed once."""

from itertools import accumulate, combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelined.programs.partition import partition
from pipelined.programs.plan import PlanError


def brute_force(costs, depth):
    cuts = combinations(range(1, len(costs)), depth - 1)
    return min(max(sum(costs[a:b]) for a, b in zip((0, *c), (*c, len(costs)), strict=True)) for c in cuts)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.data())
def test_the_slowest_stage_is_as_fast_as_any_cut_makes_it(costs, data):
    depth = data.draw(st.integers(1, len(costs)))
    assert max(sum(costs[i] for i in stage) for stage in partition(costs, depth)) == brute_force(costs, depth)


@given(st.lists(st.floats(0.1, 9), min_size=1, max_size=30), st.data())
def test_every_layer_is_placed_once_and_no_stage_is_empty(costs, data):
    depth = data.draw(st.integers(1, len(costs)))
    stages = partition(costs, depth)
    assert len(stages) == depth and all(stages)
    assert [layer for stage in stages for layer in stage] == list(range(len(costs)))


def first_best(total, start, stages):
    """The least largest cost from layer `start` on, and the first cut that gives it: the recurrence, word for word."""
    layers = len(total) - 1
    if stages == 1:
        return total[layers] - total[start], layers
    ends = range(start + 1, layers - stages + 2)
    return min((max(total[end] - total[start], first_best(total, end, stages - 1)[0]), end) for end in ends)


@given(st.lists(st.floats(0.1, 9) | st.integers(0, 3), min_size=1, max_size=9), st.data())
def test_of_equally_good_cuts_each_stage_takes_the_first(costs, data):
    depth = data.draw(st.integers(1, len(costs)))
    total, starts = [0.0, *accumulate(costs)], [0]
    for stages in range(depth, 0, -1):
        starts.append(first_best(total, starts[-1], stages)[1])
    assert partition(costs, depth) == [range(*each) for each in pairwise(starts)]


def test_a_thousand_stages_are_cut():
    """Hundreds of stages ended in a RecursionError."""
    assert partition([1.0] * 1002, 1000)[:3] == [range(1), range(1, 2), range(2, 3)]


def test_thirty_layers_on_four_stages_loses_none():
    assert sum(map(len, partition([1.0] * 30, 4))) == 30


def test_more_stages_than_layers_are_refused_with_both_numbers():
    with pytest.raises(PlanError, match=r"stages: 4, layers: 3"):
        partition([1.0] * 3, 4)
