"""A steady step: the mean over a period, never shorter than what the busiest worker computes in it."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import Links
from pipelined.planner.bounds import least_seconds
from pipelined.planner.candidates import Candidate
from pipelined.programs.costs import Costs
from pipelined.programs.plan import Plan
from pipelined.programs.pricing import steady as steady_module
from pipelined.programs.pricing.price import price
from pipelined.programs.pricing.steady import steady
from pipelined.programs.recording import record
from pipelined.schedules import Shape, find
from pipelined.simulation import Machine, Parameters, StageCosts, Workload, simulate

ASYNC, UNEVEN = find("async_1f1b"), Costs([1, 3, 3, 2], [2, 4, 2, 2])
"""A schedule and costs whose steps take 9, 9, 9, 4, and 5 s in turn."""
ROUNDING = 1 - 1e-9


def test_the_mean_is_that_of_a_whole_period():
    ends = [price(record(ASYNC, Shape(4, 1, steps=steps), UNEVEN), UNEVEN).makespan for steps in range(8, 14)]
    assert sorted(late - early for early, late in pairwise(ends)) == [4, 5, 9, 9, 9]
    assert steady(ASYNC, Shape(4, 1), UNEVEN).step == pytest.approx((9 + 9 + 9 + 4 + 5) / 5)


def test_without_a_period_it_is_at_least_what_the_busiest_worker_computes(monkeypatch):
    monkeypatch.setattr(steady_module, "_period_step", lambda starts, window: None)
    assert steady(ASYNC, Shape(4, 1), UNEVEN).step == pytest.approx(7.2, rel=0.02)
    assert steady(find("pipedream"), Shape(4, 4), UNEVEN).step == pytest.approx(4 * 7)


COSTS = st.one_of(st.sampled_from([1.0, 2.0, 3.0]), st.floats(0.5, 5.0))
STAGES = st.integers(1, 6).flatmap(lambda depth: st.lists(st.tuples(COSTS, COSTS), min_size=depth, max_size=depth))


@settings(max_examples=40)
@given(st.sampled_from(["async_1f1b", "pipedream", "pipedream_2bw"]), STAGES, st.integers(1, 6), st.data())
def test_no_step_is_shorter_than_the_computing_of_the_busiest_worker_or_the_bound(name, stages, microbatches, data):
    depth, forward, backward = len(stages), *map(list, zip(*stages, strict=True))
    if name == "pipedream_2bw":
        microbatches = max(microbatches, depth)  # it refuses fewer
    busiest = microbatches * max(map(sum, stages))
    line = data.draw(st.sampled_from([0.0, 0.1, 1.0]))
    costs = Costs(forward, backward, p2p=line)
    assert steady(find(name), Shape(depth, microbatches), costs).step >= busiest * ROUNDING
    each = [StageCosts(forward=f, backward=b, update=line) for f, b in stages]
    workload = Workload(each, [Parameters((stage,), 10) for stage in range(depth)])
    machine = Machine(Links(line, 0, 0.01), cores=data.draw(st.sampled_from([0, 2])))
    plan = Plan(name, depth, data.draw(st.sampled_from([1, 2])), 1, microbatches)
    seconds = simulate(plan, workload, machine).step_s
    bound = least_seconds(Candidate(plan), workload, machine, "rabenseifner", split_backward=False)
    assert seconds >= max(busiest, bound) * ROUNDING
