"""Stages of least largest cost, every layer placed once."""

from itertools import combinations

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


def test_thirty_layers_on_four_stages_loses_none():
    assert sum(map(len, partition([1.0] * 30, 4))) == 30


def test_more_stages_than_layers_are_refused_with_both_numbers():
    with pytest.raises(PlanError, match=r"stages: 4, layers: 3"):
        partition([1.0] * 3, 4)
