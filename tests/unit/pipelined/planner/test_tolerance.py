"""The search at measured costs: it stops where no plan left can be faster by more than these costs may be wrong."""

from dataclasses import replace

import pytest

from collectives import Links
from pipelined.measurement.measured_costs import FIRST_INPUT, MeasuredCosts
from pipelined.planner import SearchRequest, StatedCosts, search
from pipelined.planner.candidates import AUTO
from pipelined.planner.explain import as_text, result_to_dict
from pipelined.planner.model_costs import MOST_TOLERANCE
from pipelined.simulation.machine import Machine
from tests.unit.pipelined.planner import test_joint_search, test_plan_search
from tests.unit.pipelined.planner.test_joint_search import OPS, TwoLayers, dear
from tests.unit.pipelined.planner.toys import Toy

FEW_CORES = Machine(Links(alpha=1e-3, beta=1e-6, gamma=1e-6), cores=2)


def measured(toy, machine, ranks, error):
    def seconds(by):
        timed = {(op, 0 if op == "U" else 1): dear(layer_s, by) for op, layer_s in {**OPS, FIRST_INPUT: 0.1}.items()}
        return {key: {("inner", 1.0): numbers["last", 1.0], **numbers} for key, numbers in timed.items()}

    costs = MeasuredCosts(toy.layer_costs, seconds(1.0), member=seconds(1.2), error=error)
    return SearchRequest(toy, costs, machine, ranks)


CASES = [
    pytest.param(Toy(batch=8), FEW_CORES, 4, test_plan_search.everything, id="ranks that share cores"),
    pytest.param(
        Toy(layers=6, batch=8), Machine(test_plan_search.SLOW), 8, test_plan_search.everything, id="slow links"
    ),
    pytest.param(
        TwoLayers(fixed={"tensor": AUTO, "recompute": False}),
        FEW_CORES,
        4,
        test_joint_search.everything,
        id="teams on few cores",
    ),
    pytest.param(
        TwoLayers(fixed={"tensor": AUTO, "recompute": False}),
        Machine(test_joint_search.SLOW.near),
        4,
        test_joint_search.everything,
        id="teams",
    ),
]


@pytest.mark.parametrize(("toy", "machine", "ranks", "everything"), CASES)
def test_the_plan_is_within_the_error_of_the_best_and_no_more_candidates_are_simulated(toy, machine, ranks, everything):
    exact = search(measured(toy, machine, ranks, 0.0))
    best = everything(exact.request)[0].step_s
    assert (exact.tolerance, exact.chosen.step_s) == (0.0, pytest.approx(best, rel=1e-12))
    simulated = [exact.simulated]
    for error in (0.001, 0.01, 0.04):
        result = search(measured(toy, machine, ranks, error))
        assert result.tolerance == error and result.chosen.step_s <= (1 + error) * best
        assert len(result.best) == len(exact.best)
        simulated.append(result.simulated)
    assert simulated == sorted(simulated, reverse=True)


def test_where_plans_are_alike_the_error_saves_most_simulations():
    exact, within = (search(measured(Toy(batch=8), FEW_CORES, 4, error)) for error in (0.0, 0.04))
    assert within.simulated < exact.simulated / 2


def test_a_large_error_is_common_to_all_plans_and_does_not_let_the_search_stop_early():
    request = measured(Toy(), FEW_CORES, 4, 0.5)
    assert request.tolerance == MOST_TOLERANCE
    assert replace(request, costs=StatedCosts([1.0] * 4, 10, 10.0)).tolerance == 0.0


def test_the_tolerance_is_printed_and_a_search_that_was_stopped_has_none():
    request = measured(Toy(), FEW_CORES, 4, 0.02)
    result, stopped = search(request), search(request, stop=lambda: True)
    words = "no plan is faster by more than 2.0 %"
    assert words in as_text(result, {}) and words not in as_text(stopped, {})
    assert (result_to_dict(result, {})["tolerance"], result_to_dict(stopped, {})["tolerance"]) == (0.02, None)
