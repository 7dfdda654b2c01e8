"""Unequal peers of a whole swarm get work by their speeds, and a mixed fleet does nearly what its parts do."""

from dataclasses import replace

import pytest

from benchmarks.swarm.actors import flow, step
from benchmarks.swarm_fleets import (
    A100,
    BATCH,
    SPEEDS,
    T4,
    fleet_actors,
    limit_of,
    shares,
    sums_seconds,
)


@pytest.mark.in_turns(4)
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


@pytest.mark.in_turns(4)
def test_a_sum_beside_the_next_step_costs_no_time():
    at_once = fleet_actors([[1.0] * 2] * 3, 6, 8e8, batch=24)
    late = replace(at_once, delayed=True)
    nothing = step(replace(late, sums=0.0)).seconds
    assert step(late).seconds < 1.02 * nothing and step(at_once).seconds > 1.1 * nothing


def test_no_step_is_faster_than_its_backwards_and_then_what_a_line_takes():
    sums = sums_seconds(62.5e6 / (1 + 4 / 4096), 2)  # as many bytes as a line carries in a second, once each way
    assert sums == pytest.approx(1.0)
    assert limit_of(BATCH / 3.0, BATCH / 2.0, sums, delayed=False) == pytest.approx(BATCH / 4.0)
    assert limit_of(BATCH / 3.0, BATCH / 2.0, sums, delayed=True) == pytest.approx(BATCH / 2.0)
    assert limit_of(BATCH / 3.0, BATCH / 2.0, 5.0, delayed=True) == pytest.approx(BATCH / 5.0)
