"""Unequal peers of a whole swarm get work by their speeds, and a mixed fleet does nearly what its parts do."""

import sys
from dataclasses import replace

import pytest

from benchmarks import swarm_fleets, swarm_latency
from benchmarks._swarm_actors import flow, step
from benchmarks.swarm_fleets import (
    A100,
    BATCH,
    SPEEDS,
    T4,
    Fleet,
    Shares,
    fleet_actors,
    limit_of,
    shares,
    sums_seconds,
    together,
)
from benchmarks.swarm_latency import Latency


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("speeds, trainers", [*((each, 1) for each in SPEEDS), (SPEEDS[-1], 2)])
def test_shares_are_proportional_to_speeds(speeds, trainers):
    found = shares(speeds, trainers, rounds=30)
    assert found.kept, found.line()
    assert found.busy > 98


def test_a_mixed_fleet_does_nearly_what_its_parts_do():
    slow, fast = [1.0] * 3, [A100 / T4]

    def rate(stage):
        actors = fleet_actors([stage] * 3, 6, 0.0)
        return 6 * 3 * len(stage) / flow(actors, 3 * actors.slots, 6 * 3 * len(stage)).seconds

    assert rate(slow + fast) >= 0.9 * (rate(slow) + rate(fast))


@pytest.mark.in_turns(2)
def test_a_sum_beside_the_next_step_costs_no_time():
    at_once = fleet_actors([[1.0] * 2] * 3, 6, 8e8, batch=24)
    late = replace(at_once, delayed=True)
    nothing = step(replace(late, sums=0.0)).seconds
    assert step(late).seconds < 1.02 * nothing and step(at_once).seconds > 1.1 * nothing


@pytest.mark.parametrize("mixed, kept", [(8.5, True), (8.4, False)])
def test_the_sum_of_the_parts_is_what_a_mixed_fleet_is_held_to(mixed, kept):
    parts = [
        Fleet("x", name, 3, rate, rate, 2 * rate, 0.0) for name, rate in (("T4", 4.0), ("A100", 6.0), ("both", mixed))
    ]
    assert together(parts).kept == kept and together(parts).limit == pytest.approx(mixed / 10)


def test_no_step_is_faster_than_its_backwards_and_then_what_a_line_takes():
    sums = sums_seconds(62.5e6 / (1 + 4 / 4096), 2)  # as many bytes as a line carries in a second, once each way
    assert sums == pytest.approx(1.0)
    assert limit_of(BATCH / 3.0, BATCH / 2.0, sums, delayed=False) == pytest.approx(BATCH / 4.0)
    assert limit_of(BATCH / 3.0, BATCH / 2.0, sums, delayed=True) == pytest.approx(BATCH / 2.0)
    assert limit_of(BATCH / 3.0, BATCH / 2.0, 5.0, delayed=True) == pytest.approx(BATCH / 5.0)


def test_the_worst_peer_of_any_stage_decides_about_shares():
    assert not Shares((1.0, 3.0), 1, ((25.0, 75.0), (28.0, 72.0)), 100.0).kept
    assert Shares((1.0, 3.0), 1, ((25.0, 75.0), (27.0, 73.0)), 100.0).most == 2.0


@pytest.mark.parametrize(
    "program, row",
    [
        (swarm_fleets, Shares((1, 2), 1, ((33.3, 66.7),) * 2, 99.0)),
        (swarm_latency, Latency("base", 0, 18.0, 18.0, 18.0, {})),
    ],
)
def test_the_printed_table_has_the_rows_that_are_saved(program, row, monkeypatch, capsys):
    monkeypatch.setattr(program, "tables", lambda options: {"table_1": iter([row])})
    monkeypatch.setattr(sys, "argv", ["program"])
    assert program.main() == 0
    assert row.line() in capsys.readouterr().out
