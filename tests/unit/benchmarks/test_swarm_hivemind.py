"""What peers tell becomes samples a step, survivors apart and a stall; the dead count for nothing."""

import math

import pytest

from benchmarks.swarm_hivemind import Run, judged, line


def took(at, who, step, samples, digest="d"):
    return at, who, ["took", str(step), str(samples), digest]


LINES = [
    *(took(1.0, who, 1, 50) for who in "abc"),
    took(1.1, "dead", 1, 50),
    *(took(2.0, who, 2, 50) for who in "abc"),
    (2.5, "dead", ["struck"]),
    *(took(9.0, who, 3, samples, digest) for who, samples, digest in (("a", 40, "x"), ("b", 40, "y"), ("c", 30, "x"))),
    *(took(10.0, who, 4, 70) for who in "abc"),
]


def test_survivors_samples_are_added_where_each_reports_its_own():
    run = judged("hivemind", LINES, "dead", exact=False)
    assert run == Run("hivemind", True, (110, 210), 1, pytest.approx(7.0 - 1.0))


def test_the_least_is_taken_where_each_reports_the_whole_step_s():
    assert judged("swarm", LINES, "dead", exact=True).samples == (30, 70)


def test_no_step_after_the_death_is_an_endless_stall_and_no_death_is_no_result():
    assert judged("hivemind", LINES[:8], "dead", exact=False).stall_s == math.inf
    alive = judged("hivemind", LINES[:7], "dead", exact=False)
    assert not alive.struck and "0 of 1" in line("hivemind", [alive])
