"""Seconds of stages from those of layers."""

from dataclasses import replace

import pytest

from collectives import Links
from pipelined.measurement.measured_costs import FIRST_INPUT, MeasuredCosts, kinds_of
from pipelined.planner import SearchRequest, search
from pipelined.planner.model_costs import MIN_SECONDS, StatedCosts, priced
from pipelined.programs.plan import Plan
from pipelined.simulation import Machine
from tests.unit.pipelined.planner.toys import Toy

FIRST, INNER, LAST = kinds_of([1.0] * 4)[0], kinds_of([1.0] * 4)[1], kinds_of([1.0] * 4)[3]


def measured(sizes=(1, 4), runtime=0.0):
    at = {(op, b): {None: 1.0, FIRST: 2.0 * b, INNER: 3.0 * b, LAST: 5.0 * b} for op in "FBIW" for b in sizes}
    at |= {(FIRST_INPUT, b): {None: 0.25, FIRST: 0.0, INNER: 0.0, LAST: 0.0} for b in sizes}
    return MeasuredCosts([1.0] * 4, {**at, ("U", 0): {None: 0.5, FIRST: 1.0, INNER: 1.0, LAST: 1.0}}, runtime)


def test_layers_are_of_three_kinds_by_place_and_of_more_by_cost():
    assert [kind[0] for kind in kinds_of([9.0, 1.0, 2.0, 9.0])] == ["first", "inner", "inner", "last"]
    assert len(set(kinds_of([9.0, 1.0, 2.0, 1.0, 9.0]))) == 4


@pytest.mark.parametrize(
    ("layers", "rows", "seconds"),
    [
        (range(0, 2), 1, 1 + 2 + 3),
        (range(1, 3), 4, 1 + 2 * 12),
        (range(0, 4), 1, 1 + 2 + 6 + 5),
        (range(1, 2), 2, 4 + (13 - 4) / 3),
        (range(1, 2), 8, 2 * 13),
    ],
)
def test_a_stage_is_an_instruction_and_its_layers_and_sizes_lie_on_a_line(layers, rows, seconds):
    assert measured().seconds("F", layers, rows) == pytest.approx(seconds)


def test_below_the_smallest_size_it_is_the_smallest():
    assert measured(sizes=(2, 4)).seconds("F", range(1, 2), 1) == 7.0


@pytest.mark.parametrize(("costs", "input_half"), [(measured(), 0.25), (StatedCosts([1.0] * 4, 1, 1.0, 1.0), 0.0)])
def test_on_the_first_stage_all_of_a_split_backward_is_its_weight_half(costs, input_half):
    assert costs.seconds("I", range(0, 2), 1) == input_half
    assert costs.seconds("W", range(0, 2), 1) == costs.seconds("B", range(0, 2), 1)


def test_the_halves_of_compiled_backwards_are_not_timed_and_are_half_of_it_each():
    costs_of_halves = measured(runtime=0.5)
    timed = {key: seconds for key, seconds in costs_of_halves.timed.items() if key[0] in "FBU"}
    costs, toy = replace(costs_of_halves, timed=timed), Toy(fixed={"compile": True})
    for stage in priced(toy, Plan("gpipe", 2, 1, 1, 4), costs).stages:
        assert 2 * stage.seconds("I") == 2 * stage.seconds("W") == stage.seconds("B")
    chosen = search(SearchRequest(toy, costs, Machine(), 4)).chosen
    assert chosen.step_s == search(SearchRequest(toy, costs_of_halves, Machine(), 4)).chosen.step_s


def test_an_update_does_not_depend_on_the_microbatch():
    assert measured().seconds("U", range(0, 2), 1) == measured().seconds("U", range(0, 2), 64) == 2.5


def test_a_speed_and_an_instructions_own_time_are_all_there_is_to_stated_costs():
    stated = StatedCosts([1.0, 2.0, 3.0], sequence=10, flops=5.0, overhead=0.5)
    assert stated.seconds("F", range(1, 3), 2) == 0.5 + 5 * 2 * 10 / 5
    assert stated.seconds("B", range(1, 3), 2) == 0.5 + 2 * 5 * 2 * 10 / 5


def test_a_workload_keeps_its_sizes_and_gets_the_seconds():
    toy, plan = Toy(), Plan("gpipe", 2, 1, 1, 4)
    workload = priced(toy, plan, measured())
    assert [stage.forward for stage in workload.stages] == [1 + 2 + 3, 1 + 3 + 5]
    assert [stage.seconds("I") for stage in workload.stages] == [0.25, 9.0]
    assert priced(toy, plan, StatedCosts([1.0] * 4, 1, 1.0)).stages[0].seconds("I") == MIN_SECONDS
    assert [stage.update for stage in workload.stages] == [2.5, 2.5]
    assert workload.parameters == toy.workload(plan).parameters


def test_halved_microbatches_cost_what_half_as_many_sequences_cost():
    plan = Plan("chimera", 2, 1, 8, 2, {"scale": "backward-halving"})
    workload = priced(Toy(), plan, measured())
    assert workload.stages[0].forward / 2 == measured().seconds("F", range(0, 2), 4)


@pytest.mark.parametrize("costs", [measured(runtime=0.5), StatedCosts([1.0] * 4, 10, 5.0, 0.5)])
def test_a_recomputed_forward_is_no_instruction_of_its_own(costs):
    stage = priced(Toy(), Plan("gpipe", 2, 1, 1, 4), costs).stages[1]
    assert stage.seconds("B", recompute=True) == stage.backward + stage.forward - 0.5
    assert stage.seconds("I", recompute=True) == stage.backward_input + stage.forward - 0.5


class Divided(Toy):
    """The ranks that hold a parameter divide its update."""

    def workload(self, plan):
        return super().workload(plan).with_divided_updates(plan)


def test_an_update_that_its_holders_divide_takes_each_of_them_its_part():
    plan = Plan("gpipe", 2, 2, 1, 2)
    assert [stage.update for stage in priced(Toy(), plan, measured()).stages] == [2.5, 2.5]
    assert [stage.update for stage in priced(Divided(), plan, measured()).stages] == [1.25, 1.25]


def updating(beside):
    """A layer's update takes five times as long as its forward, at the end of a step or beside the next one."""
    kinds = [None, FIRST, INNER, LAST]
    at = {(op, 1): dict.fromkeys(kinds, 1.0) for op in "FBIW"} | {(FIRST_INPUT, 1): dict.fromkeys(kinds, 0.0)}
    never, long = dict.fromkeys(kinds, 0.0), {**dict.fromkeys(kinds, 5.0), None: 0.0}
    return MeasuredCosts([1.0] * 4, {**at, ("U", 0): never if beside else long, ("D", 0): long if beside else never})


WIDTHS = {"plain": (Toy, False, 2), "divided": (Divided, False, 4), "delayed": (Toy, True, 4)}


@pytest.mark.parametrize(("model", "beside", "width"), WIDTHS.values(), ids=WIDTHS)
def test_the_plan_is_as_wide_as_its_updates_let_it_be(model, beside, width):
    """Each of four ranks alone takes 20 s and updates for 20; pairs take 30 s at most, and update for 10."""
    chosen = search(SearchRequest(model(has_masters=beside), updating(beside), Machine(Links(0.0, 0.0, 0.0)), 4)).chosen
    assert chosen.candidate.plan.width == width
