"""What the planner's benchmark picks and how it counts errors."""

import pytest

from benchmarks._planned import Emulated
from benchmarks._predictions import Row, as_table, summary
from benchmarks.planner import pick
from collectives import Links
from pipelined.planner import SearchRequest
from pipelined.planner.costs import FIELDS
from pipelined.simulation.machine import Machine

ROW = ("gpipe", 2, 1, 4, 2, False)


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
    rows, timed = candidate.plan.microbatch, {field: op for op, field in FIELDS.items() if op not in "AU"}
    told = {field: planned.seconds(op, layers, rows) for field, op in timed.items()}
    assert planned.load(candidate).seconds == pytest.approx({field: s - 0.5 for field, s in told.items()})


def test_errors_are_counted_both_ways_and_the_chosen_is_beside_the_best():
    memory = ((100.0, 100), (98.0, 100))
    rows = [Row(*ROW, 1.1, 1.0, memory), Row(*ROW, 1.0, 0.8, ((115.0, 100),)), Row(*ROW, 0.9, 1.0, ())]
    told = summary(rows)
    assert told["median_error"] == pytest.approx(0.1) and told["largest_error"] == pytest.approx(0.25)
    assert told["chosen_over_best"] == 1.25
    assert told["memory_ratios"] == pytest.approx([0.98, 1.15])
    table = as_table(rows)
    assert "median error 10.0%, largest 25.0% (3 arrangements); the chosen takes 1.250 x" in table
    first, second, third = table.splitlines()[1:4]
    assert first.endswith("0.980 to 1.000") and second.endswith("1.150 to 1.150") and third.endswith("%")
    assert table.count("rank 0") == 2 and table.count("rank 1") == 1
