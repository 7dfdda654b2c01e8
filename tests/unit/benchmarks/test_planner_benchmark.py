"""What the planner's benchmark picks, and what its emulated jobs take."""

import pytest

from benchmarks.pipelines.planned import Emulated
from benchmarks.planner import pick
from collectives import Links
from pipelined.planner import SearchRequest
from pipelined.planner.model_costs import FIELDS
from pipelined.programs.instructions import RECOMPUTED_FORWARD, UPDATE
from pipelined.simulation import Machine


def test_the_best_predicted_are_run_and_others_from_all_over():
    planned = Emulated(layers=4, batch=4)
    picked = pick(SearchRequest(planned, planned, Machine(Links()), 2), 9)
    steps = [outcome.step_s for outcome in picked]
    assert len(picked) == len({outcome.candidate for outcome in picked}) == 9
    assert steps == sorted(steps)
    assert all(planned.suits(outcome.candidate.plan) for outcome in picked)


def test_an_emulated_job_takes_what_the_planner_is_reported_but_for_being_late():
    planned = Emulated(late=0.5)
    candidate = pick(SearchRequest(planned, planned, Machine(Links()), 2), 1)[0].candidate
    layers = range(planned.layers // candidate.plan.depth)
    rows, timed = (
        candidate.plan.microbatch_size,
        {field: op for op, field in FIELDS.items() if op not in (RECOMPUTED_FORWARD, UPDATE)},
    )
    told = {field: planned.seconds(op, layers, rows) for field, op in timed.items()}
    assert planned.load(candidate).seconds == pytest.approx({field: s - 0.5 for field, s in told.items()})
