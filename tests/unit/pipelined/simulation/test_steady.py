"""Schedules without a flush in the simulator: steps in a full pipe, worked out by hand and held to the pricer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import Links, ProblemSize
from collectives.algorithms import ALL_REDUCE
from pipelined.programs.costs import Costs
from pipelined.programs.plan import Plan
from pipelined.programs.pricing.steady import steady
from pipelined.schedules import find
from pipelined.simulation import Machine, Parameters, StageCosts, Workload, simulate
from pipelined.simulation.traffic import message_bytes, sum_bytes

EVERY = {"pipedream": 1, "async_1f1b": 1, "pipedream_2bw": 4}
"""Microbatches an update, of four a step."""


def step(name, depth=4, width=1, machine=None, parameter_bytes=0, **costs):
    plan = Plan(name, depth, width, 1, 4)
    return simulate(plan, Workload.even(depth, StageCosts(**costs), parameter_bytes), machine)


@pytest.mark.parametrize("name", EVERY)
def test_a_full_pipe_computes_all_the_time(name):
    simulated = step(name, forward=2, backward=3)
    assert simulated.step_s == simulated.makespan == pytest.approx(4 * (2 + 3))
    assert simulated.busy == pytest.approx([20.0] * 4) and simulated.bubble_ratio == pytest.approx(0)
    assert simulated.exposed_sums == 0


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=5)
@given(st.sampled_from([2, 3, 4]), st.integers(0, 2))
def test_a_step_takes_what_the_pricer_says_where_updates_take_nothing(name, depth, alpha):
    plan, costs = Plan(name, depth, 1, 1, 4), Costs(1, 2, p2p=alpha)
    simulated = step(name, depth, machine=Machine(Links(alpha, 0, 0)))
    assert simulated.step_s == pytest.approx(steady(find(name), plan.shape, costs).step)


@pytest.mark.parametrize(("name", "every"), EVERY.items())
def test_every_update_is_waited_for(name, every):
    assert step(name, parameter_bytes=4, update=0.5).step_s == pytest.approx(12 + 0.5 * 4 / every)


def test_a_sum_after_every_gradient_is_waited_for_and_one_after_many_is_hidden():
    machine = Machine(Links(0, 1e-3, 0), far=Links(0, 0, 0), node=0)
    seconds = ALL_REDUCE.forms("rabenseifner").seconds(ProblemSize.on_one_node(2, 400), Links(0, 1e-3, 0))
    free = {name: step(name, 4, 2, parameter_bytes=400).step_s for name in EVERY}
    slow = {name: step(name, 4, 2, machine, 400).step_s for name in EVERY}
    assert slow["pipedream"] == pytest.approx(free["pipedream"] + 4 * seconds)
    assert slow["pipedream_2bw"] == pytest.approx(free["pipedream_2bw"])


def test_weights_are_held_in_versions_and_gradients_twice():
    memory = step("pipedream", parameter_bytes=4000, activation_bytes=10).memory
    assert [rank.weights for rank in memory] == [4 * 4000, 3 * 4000, 2 * 4000, 4000]
    assert {rank.gradients for rank in memory} == {2 * 4000}
    assert [rank.activations for rank in memory] == [40, 30, 20, 10]


@pytest.mark.parametrize(("name", "every"), EVERY.items())
def test_links_carry_a_sum_for_every_update(name, every):
    plan = Plan(name, 2, 2, 1, 4)
    workload = Workload([StageCosts(message_bytes=8)] * 2, [Parameters((0,), 100), Parameters((1,), 50)])
    carried = simulate(plan, workload).traffic
    sums = [sum_bytes(plan.holders(s), 4 * n, 4, "rabenseifner") for s, n in ((0, 100), (1, 50))]
    once = {link: nbytes for one in sums for link, nbytes in one.items()}
    assert message_bytes(plan, workload)[0, 1] == 4 * 8 < carried[0, 1]
    assert carried[0, 2] - sum_of_totals(carried, once, every) == 4 // every * once[0, 2]


def sum_of_totals(carried, once, every):
    """What all ranks agree on goes the same ways in both halves of the ranks, so both links differ by sums alone."""
    return carried[1, 3] - 4 // every * once[1, 3]


def test_ranks_that_share_cores_take_turns():
    assert step("pipedream", 4, machine=Machine(cores=2)).step_s == pytest.approx(24)
