"""The search, against simulating everything, and its bounds against what is simulated."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import Links
from pipelined.errors import UsageError
from pipelined.planner import SearchRequest, StatedCosts, search
from pipelined.planner.bounds import least_bytes, least_seconds
from pipelined.planner.candidates import candidates
from pipelined.planner.recorded_programs import RecordedPrograms
from pipelined.programs.plan import Plan
from pipelined.simulation import Machine
from tests.unit.pipelined.planner.toys import Toy

SLOW = Links(alpha=0.1, beta=1e-3, gamma=1e-4)
NODES = Machine(SLOW, Links(alpha=1.0, beta=1e-2, gamma=1e-4), node=2)


def request(toy, ranks, machine=None, limit=float("inf"), overhead=0.25):
    return SearchRequest(
        toy, StatedCosts(toy.layer_costs, toy.sequence, 10.0, overhead), machine or Machine(SLOW), ranks, limit
    )


def everything(problem):
    toy = problem.model
    outcomes = [
        problem.simulate(c) for c in candidates(problem.ranks, toy.batch, toy.layers, toy.fixed, problem.without_flush)
    ]
    return sorted((o for o in outcomes if o.memory <= problem.memory_limit), key=lambda outcome: outcome.order)


@pytest.mark.parametrize(
    ("ranks", "limit", "machine"),
    [
        (2, float("inf"), Machine()),
        (4, float("inf"), Machine(SLOW)),
        (4, 40_000, Machine(SLOW, cores=2)),
        (4, 20_000, Machine()),
        (4, float("inf"), NODES),
    ],
)
def test_the_best_are_those_that_simulating_everything_finds(ranks, limit, machine):
    problem = request(Toy(batch=4), ranks, machine, limit)
    result, truth = search(problem), everything(problem)
    assert [o.step_s for o in result.best] == [o.step_s for o in truth[:10]]
    assert result.chosen.candidate == truth[0].candidate
    assert result.simulated <= result.considered


def test_schedules_without_a_flush_are_looked_at_where_they_are_requested_and_say_what_they_are():
    problem = replace(request(Toy(layers=3, batch=3), 3, Machine()), without_flush=True)
    result, truth = search(problem), everything(problem)
    assert [o.step_s for o in result.best] == pytest.approx([o.step_s for o in truth[:10]])
    without_flush = [o for o in truth if not o.candidate.plan.flushes]
    assert without_flush and all("not exact" in o.candidate.label for o in without_flush)
    assert all(o.candidate.plan.flushes for o in search(replace(problem, without_flush=False)).best)


def test_bounds_leave_most_unsimulated():
    result = search(request(Toy(layers=8, batch=32), 8))
    assert result.simulated < result.considered / 3


@settings(max_examples=5)
@given(
    st.sampled_from([1, 2, 4]), st.floats(0, 2), st.sampled_from([Machine(SLOW), Machine(), NODES]), st.integers(0, 2)
)
def test_no_step_is_shorter_and_no_rank_holds_less_than_the_bounds(ranks, overhead, machine, cores):
    machine = replace(machine, cores=cores)
    problem, recorded = request(Toy(layers=4, batch=4), ranks, machine, overhead=overhead), RecordedPrograms()
    for candidate in candidates(ranks, 4, 4, without_flush=True):
        workload, outcome = problem.workload(candidate.plan), problem.simulate(candidate)
        bound = least_seconds(
            candidate, workload, machine, "ring", split_backward=recorded.splits_backward(candidate.plan)
        )
        assert bound <= outcome.step_s * (1 + 1e-9), candidate
        assert least_bytes(candidate, workload) <= outcome.memory, candidate


def test_one_pipe_with_a_flush_is_as_short_as_its_bound_where_nothing_else_costs():
    machine = Machine()
    problem = request(Toy(batch=4), 4, machine, overhead=0.0)
    for name in ("gpipe", "one_f_one_b"):
        for candidate in candidates(4, 4, 4, {"schedule": name, "depth": 4, "recompute": False}):
            bound = least_seconds(candidate, problem.workload(candidate.plan), machine, "ring", split_backward=False)
            assert bound == pytest.approx(problem.simulate(candidate).step_s)


def test_a_microbatch_alone_is_as_short_as_its_bound_where_its_backward_is_split():
    problem = request(Toy(batch=1), 4, Machine(), overhead=0.0)
    for name in ("zb_h1", "chimera_w"):
        for candidate in candidates(4, 1, 4, {"schedule": name, "depth": 4, "recompute": False}):
            bound = least_seconds(
                candidate, problem.workload(candidate.plan), problem.machine, "ring", split_backward=True
            )
            assert bound == pytest.approx(problem.simulate(candidate).step_s)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_the_choice_is_never_slower_than_data_parallelism_where_that_fits(ranks):
    result = search(request(Toy(), ranks))
    assert result.chosen.step_s <= result.baseline.step_s


def test_a_pipeline_is_chosen_where_the_whole_model_does_not_fit():
    memory = search(request(Toy(), 4)).baseline.memory
    result = search(request(Toy(), 4, limit=memory - 1))
    assert result.too_big and result.chosen.memory < memory and result.chosen.candidate.plan.depth > 1


def test_recomputation_is_chosen_where_nothing_else_fits():
    fixed = {"schedule": "gpipe", "depth": 4}
    outcomes = [o for o in everything(request(Toy(fixed=fixed), 4)) if not o.candidate.recompute]
    result = search(request(Toy(fixed=fixed), 4, limit=min(o.memory for o in outcomes) - 1))
    assert result.chosen.candidate.recompute


def test_too_little_memory_for_anything_is_refused_with_what_it_takes():
    with pytest.raises(UsageError, match=r"no plan fits the memory \(limit: 100 B a rank, the least"):
        search(request(Toy(), 4, limit=100))


def test_a_plan_takes_the_costs_along_by_which_its_sums_were_placed():
    """With B sequences a stage of two layers takes 0.25 + 2 B s; a message has 16 B bytes of 1 ms, and 0.1 s."""
    problem = request(Toy(fixed={"schedule": "chimera", "depth": 2, "pipes": 2, "scale": "direct"}), ranks=2)
    plan = search(problem).chosen.candidate.plan
    size = plan.microbatch_size
    assert plan.costs.forward == [pytest.approx(0.25 + 2 * size)] * 2
    assert plan.costs.p2p == pytest.approx(0.1 + 16e-3 * size)
    assert Plan.of(plan.to_dict()).costs == plan.costs
